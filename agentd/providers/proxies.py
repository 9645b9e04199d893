"""Which proxy a request goes through, by the variables that curl and others go by, taken from the session's environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

PROXY_ENV: Final = tuple(
    name for base in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (base, base.lower())
)


def proxy_for(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy's URL for a request to `url`; None to go directly. Lower-case names win, as in curl.

    NO_PROXY: host names (their subdomains too, with or without a leading dot), addresses, networks (10.0.0.0/8), `*`, each
    with a port if only that one is meant.
    """
    parts = urlsplit(url)
    proxy = _get(env, f"{parts.scheme}_proxy") or _get(env, "all_proxy")
    if not proxy or _excluded(parts.hostname or "", parts.port, _get(env, "no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_host(proxy: str) -> str:
    """The proxy's host and port, for messages: its URL may hold a password."""
    parts = urlsplit(proxy)
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "?"


def _get(env: Mapping[str, str], name: str) -> str:
    return (env.get(name) or env.get(name.upper()) or "").strip()


def _excluded(host: str, port: int | None, no_proxy: str) -> bool:
    return any(_matches(host.lower(), port, entry.strip().lower()) for entry in no_proxy.split(",") if entry.strip())


def _matches(host: str, port: int | None, entry: str) -> bool:
    if entry == "*":
        return True
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit() and (name.endswith("]") or ":" not in name):
        if port is None or int(wanted) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    entry = entry.removeprefix("*").lstrip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))
