"""The proxy that the environment names for a server. Messages about failed requests name it.

Loaded only after a request got no answer.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from lockkit.stores.keywords import why_no_endpoint


def proxy_for(server: str) -> tuple[str, str]:
    """The variable that names the proxy for this server, and why no request can use it.

    Both are empty if there is none. The value is never shown: it may contain a password.
    """
    parts = urlsplit(server)
    proxies = getproxies_environment()
    scheme = parts.scheme if parts.scheme in proxies else "all"
    if scheme not in proxies or proxy_bypass(parts.hostname or ""):
        return "", ""
    name = f"{scheme}_proxy"
    value = proxies[scheme]
    why = why_no_endpoint(value if "://" in value else f"http://{value}")
    return (name if name in os.environ else name.upper()), why


def proxy_fault(server: str, error: BaseException) -> str:
    """What is wrong with the proxy, if this error comes from its URL."""
    name, why = proxy_for(server)
    malformed = isinstance(error, ValueError) or type(error).__name__ == "ProxySchemeUnknown"
    return f"the proxy in {name} {why}" if why and malformed else ""
