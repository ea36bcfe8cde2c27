"""`lockkit serve`: the embedded object server, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import OK, USAGE, CommandError, command, flag, option, say_json
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.lab.server.policy import AccessPolicy

POLICY_BYTES_MAX = 1_000_000
"""AWS allows 20 KB for a bucket's policy; a device has no end."""
ABOUT = """\
Runs an object server that the SDKs of S3, Google Cloud Storage and Azure can use. It keeps its
objects in one SQLite file. It prints one line of JSON with its three addresses once it answers,
then serves until Ctrl-C (exit 130) or SIGTERM (exit 0). It accepts any credentials, creates
buckets on first use, keeps every version, and records every request (GET /__lockkit/requests on
each address)."""

EXAMPLE = """\
lockkit serve --port 9000 --db lake.sqlite --profile aws
lockkit lock show s3://lake/orders --endpoint http://127.0.0.1:9000"""


def add(commands: Any) -> None:
    parser = command(commands, "serve", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "--port", type=int, default=0,
        help="port of the S3 address; the other two follow it (default 0: any free ports)",
    )  # fmt: skip
    parser.add_argument(
        "--db", default=":memory:", metavar="FILE",
        help="keep the objects in FILE (default: in memory)",
    )  # fmt: skip
    parser.add_argument(
        "--profile", default="aws", metavar="NAME",
        help="the provider whose behaviour it copies: aws (default), gcs, azure, spaces, rgw, "
        "rgw-quoted, or two-steps (its conditional writes are not atomic)",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    flag(parser, "--allow-remote", "serve other machines too; any credentials are accepted")
    option(parser, "--latency-ms", "MS", "delay every request by this time", 0.0)
    parser.add_argument(
        "--access-key", metavar="ID",
        help="accept only S3 requests that are signed with this key and "
        "its --secret-key (default: any credentials)",
    )  # fmt: skip
    parser.add_argument(
        "--secret-key", metavar="SECRET", default="",
        help="the secret of --access-key; safer in the environment variable LOCKKIT_SECRET_KEY",
    )  # fmt: skip
    flag(
        parser, "--strict-buckets", "refuse requests to a bucket or container that was not created"
    )
    parser.add_argument(
        "--policy", action="append", default=[], metavar="FILE",
        help="enforce an AWS policy, Google roles with their bindings, or an Azure role on that "
        "provider's address, for every client (repeatable; see datasets/policies)",
    )  # fmt: skip
    parser.set_defaults(run=run, name="serve", extra="")


def run(args: argparse.Namespace) -> int:
    from lockkit.lab.server import Credentials, Emulator

    secret = args.secret_key or os.environ.get("LOCKKIT_SECRET_KEY", "")
    if args.access_key and not secret:
        raise CommandError(
            "--access-key needs its secret: --secret-key, or LOCKKIT_SECRET_KEY", code=USAGE
        )
    if args.secret_key and not args.access_key:
        raise CommandError(
            "--secret-key needs --access-key, or no signature can be verified", code=USAGE
        )
    policy = policy_of(args.policy)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        with Emulator(
            db=args.db, profile=args.profile, port=args.port, host=args.host,
            allow_remote=args.allow_remote, latency_ms=args.latency_ms, policy=policy,
            strict_buckets=args.strict_buckets,
            credentials=Credentials(args.access_key, secret) if args.access_key else None,
        ) as emulator:  # fmt: skip
            say_json({"s3": emulator.s3, "gcs": emulator.gcs, "azure": emulator.azure})
            over.wait()
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    except (OSError, sqlite3.Error) as error:
        where = f"{args.host}:{args.port} from {args.db}"
        raise CommandError(f"cannot serve on {plain(where)}: {plain(error)}") from None
    return OK


def policy_of(names: list[str]) -> AccessPolicy | None:
    from lockkit.lab.server.policy import read_policy

    if not names:
        return None
    try:
        return read_policy(map(_text, names))
    except (OSError, ValueError) as error:
        raise CommandError(f"--policy {plain(', '.join(names))}: {plain(error)}") from None


def _text(name: str) -> str:
    with open(name, "rb", opener=_at_once) as file:
        text = file.read(POLICY_BYTES_MAX + 1)
    if len(text) > POLICY_BYTES_MAX:
        raise ValueError(f"a policy has at most {POLICY_BYTES_MAX} bytes")
    return text.decode()


def _at_once(name: str, flags: int) -> int:
    """A pipe is opened although nobody writes to it: then it is empty."""
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
