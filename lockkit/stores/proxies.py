"""The proxy that the environment names for a server. Messages about failed requests name it.

Loaded only after a request got no answer.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from lockkit.stores.keywords import why_no_endpoint

BY_BOTO3 = ("s3", "s3a", "dynamodb")
"""The schemes of stores whose SDK reads no ALL_PROXY (`botocore.httpsession`), as requests does."""


def proxy_for(url: str, server: str) -> tuple[str, str]:
    """The variable that names the proxy for this store's server, and why no request can use it.

    Both are empty if there is none. The value is never shown: it may contain a password.
    """
    parts = urlsplit(server)
    proxies = getproxies_environment()
    others = () if _by_boto3(url) else ("all",)
    scheme = next((each for each in (parts.scheme, *others) if each in proxies), "")
    if not scheme or proxy_bypass(parts.hostname or ""):
        return "", ""
    name = f"{scheme}_proxy"
    return (name if name in os.environ else name.upper()), _why_not(proxies[scheme], url)


def proxy_fault(url: str, server: str, error: BaseException) -> str:
    """What is wrong with the proxy, if this error comes from its URL."""
    name, why = proxy_for(url, server)
    malformed = isinstance(error, ValueError) or type(error).__name__ == "ProxySchemeUnknown"
    # boto3 takes `socks5://host` for the name of an HTTP proxy, and so finds no such host.
    named = isinstance(error, OSError) and _by_boto3(url)
    return f"the proxy in {name} {why}" if why and (malformed or named) else ""


def _why_not(proxy: str, url: str) -> str:
    if proxy.lower().startswith("socks"):
        what = "boto3 cannot use" if _by_boto3(url) else "needs the package PySocks"
        return f"is a SOCKS proxy, which {what}"
    return why_no_endpoint(proxy if "://" in proxy else f"http://{proxy}")


def _by_boto3(url: str) -> bool:
    return url.partition("://")[0] in BY_BOTO3
