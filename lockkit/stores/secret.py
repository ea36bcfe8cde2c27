"""Whether a URL carries a credential: it is refused then, because messages and files show URLs."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lockkit.errors import SECRET_NAMES

CODINGS_MAX = 3  # layers of percent-encoding that are removed to find a credential

_PARAMETER = re.compile(rf"(?:^|[?&;#])\s*{SECRET_NAMES}\s*=", re.I)
_USER = re.compile(r"://[^/?#@]*:[^/?#]*@")  # as RFC 3986 (3.2.1) writes it
_PORT = re.compile(r":\d+(?=,|$)")
_BARE_BUCKETS = ("s3", "s3a", "gs")  # their names have no `:` or `@`; Azure: container@account
_AZURE, _NO_PORT = ("az", "abfs", "abfss"), re.compile(r"^[^/?#:]*:(?!\d*(?:[/?#]|$))")
# After an account's name comes a port or nothing: anything else may be the account's key.


def carries_secret(url: str, *, with_port: bool = False) -> bool:
    """Whether `url` contains a password, a signature, a token or a key.

    A password may contain a `/`, as half of AWS's secret keys do. `with_port` says that hosts with
    port numbers may come before the first slash, as in the URLs of services.
    """
    for _ in range(CODINGS_MAX):
        if _PARAMETER.search(url) or _USER.search(url) or _has_user(url, with_port):
            return True
        decoded = unquote(url)
        if decoded == url:
            return False
        url = decoded
    return True


def _has_user(url: str, with_port: bool) -> bool:
    scheme, _, rest = url.partition("://")
    rest = rest or re.split(":/|//", scheme, maxsplit=1)[-1]  # a character too few, or no scheme
    before, at, after = rest.partition("@")
    host = re.split(r"[/?#]", before, maxsplit=1)[0]
    if at and host == before and scheme.lower() in _BARE_BUCKETS:
        return True
    if at and host == before and scheme.lower() in _AZURE and _NO_PORT.search(after):
        return True
    host = _PORT.sub("", host) if with_port else host
    return bool(at) and ":" in host
