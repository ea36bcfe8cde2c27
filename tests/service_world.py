"""Lock services that tests share: real ones, each started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockkit.services.service import Service, ServiceUnavailable


def running(kind: type[Service], folder: Any, **options: Any) -> Iterator[Service]:
    """Until the session ends; what is not on this machine is skipped, with how to get it."""
    service = kind(folder, **options)
    try:
        service.start()
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))
    yield service
    service.stop()
