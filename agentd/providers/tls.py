"""The TLS settings of requests, made once per CA bundle: reading one takes 20 ms and more."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping


def ssl_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """The context for a session's environment (SSL_CERT_FILE, SSL_CERT_DIR). Raises OSError when a bundle cannot be read."""
    return _context(env.get("SSL_CERT_FILE") or None, env.get("SSL_CERT_DIR") or None)


@functools.lru_cache(maxsize=8)
def _context(cafile: str | None, capath: str | None) -> ssl.SSLContext:
    if cafile is None and capath is None:
        import certifi  # comes with httpx, which verifies with it too

        cafile = certifi.where()
    return ssl.create_default_context(cafile=cafile, capath=capath)
