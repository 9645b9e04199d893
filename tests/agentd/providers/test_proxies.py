"""Proxies by the session's environment, read as curl reads it."""

from __future__ import annotations

import pytest

from agentd.providers.proxies import proxy_for, proxy_host

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        ("https://a.example/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, PROXY),
        ("http://a.example/v1", {"HTTPS_PROXY": PROXY}, None),
        ("http://a.example/v1", {"ALL_PROXY": PROXY}, PROXY),
        ("http://a.example/v1", {"http_proxy": "proxy:3128"}, PROXY),
        ("http://a.example/v1", {"http_proxy": " "}, None),
        ("http://a.example/v1", {}, None),
    ],
)
def test_the_scheme_chooses_the_variable(url: str, env: dict[str, str], expected: str | None) -> None:
    assert proxy_for(url, env) == expected


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "http://a.example/", True), ("a.example", "http://a.example/", True), (".example", "http://a.example/", True),
        ("example", "http://a.example/", True), ("*.example", "http://a.example/", True), ("A.EXAMPLE", "http://a.example/", True),
        ("ample", "http://a.example/", False), ("b.example , a.example", "http://a.example/", True),
        ("a.example:80", "http://a.example:80/", True), ("a.example:80", "http://a.example:81/", False),
        ("127.0.0.1", "http://127.0.0.1:9/", True), ("10.0.0.0/8", "http://10.1.2.3/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("::1", "http://[::1]:9/", True), ("[::1]:9", "http://[::1]:9/", True), ("[::1]:8", "http://[::1]:9/", False),
        ("localhost", "http://localhost:1/", True), ("", "http://a.example/", False), (",", "http://a.example/", False),
    ],
)  # fmt: skip
def test_no_proxy_names_hosts_domains_addresses_and_networks(no_proxy: str, url: str, direct: bool) -> None:
    assert (proxy_for(url, {"http_proxy": PROXY, "no_proxy": no_proxy}) is None) is direct


def test_a_proxys_password_is_not_in_its_name() -> None:
    assert proxy_host("http://user:secret@proxy:3128") == "proxy:3128"
    assert proxy_host("http://proxy") == "proxy"
