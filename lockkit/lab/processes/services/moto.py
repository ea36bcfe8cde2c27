"""moto on loopback, one request at a time: `python -m lockkit.lab.processes.services.moto PORT`.

Its conditional writes check first and then write, with no lock around both. Without this lock,
7 of 200 races for one item had two winners.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


def serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def locked(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with one:
            return list(application(environ, start))

    make_server("127.0.0.1", port, locked, threaded=True).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
