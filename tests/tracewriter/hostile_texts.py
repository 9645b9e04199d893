"""Texts made to make redaction slow: repeated anchors, near misses, unfinished quotes, keys without an end."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from tracewriter.redact_anchors import AUTOMATA

TOKEN = "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AoEiU"


def hostile() -> Iterator[tuple[str, str]]:
    anchors = sorted({anchor.decode() for group in AUTOMATA for anchor in group})
    rnd = random.Random(1)
    for anchor in anchors:
        yield f"{anchor!r} repeated", anchor
        yield f"{anchor!r} with spaces", anchor + " "
        yield f"{anchor!r} and a word", anchor + "abcdefg-"
    mixed = "".join(rnd.choices(anchors, k=4000))
    yield "all anchors", mixed
    yield "all anchors, apart", " ".join(rnd.choices(anchors, k=4000))
    near = ("password=", "password: ", 'password="', "password='", "password: x", "token=token=", 'token = "', "api_key: a1b2c3d4 ",
            "password=a1b2 ", "PASSWORD=ab ", "--password ab1c ", "Authorization: ", "Authorization: Basic ", "Bearer ", "Bearer abcd1234 ",  # noqa: E501
            "Cookie: a=", "Cookie: a=bcdefghijkl\n", "curl -u a:", "curl -u a:b1 ", "://", "://u:p@h ", "://u:", "://" + "@" * 60, ":\\/\\/", "login x password y1z2 ",  # noqa: E501
            "sk-" + "a" * 15 + " ", "sk-" + "a-" * 40, f"sk-{TOKEN} ", f"ghp_{TOKEN[:16]} ", "ghp_ghp_ghp_ghp_", "eyJabcdefgh.", "eyJabcdefgh.eyJabcde.",  # noqa: E501
            "eyJabcdefgh-", f"AKIA{'A' * 16},", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", "-----BEGIN ", "-", "----- ",  # noqa: E501
            "_v1_", "live_", "a_live_", f"a_live_{TOKEN[:16]} ", '"', "'", "`", "\\", "\\\\\"", '"\\', "\n", "\t", "é", "\x1b[31m", "\\u0041", "\\u00e9", "=", ":", " ", "[redacted:",  # noqa: E501
            "[redacted:exact]", 'password: "\\', "password='\\", 'password: "\\"', '{"password":"', '{\\"token\\":\\"', "token:" + " " * 8, "secret" + "\\t" * 8,  # noqa: E501
            "aaaaaa", "aaaaab", "123456", "hunter2", "<password>", "<token>a</token>", "x_key ", "private_key: ", "private_key=a1b2c3d4 ", "privateKey: 'a1b2c3d4', ",  # noqa: E501
            "https://u:p%40@h/", "SG." + "a" * 64, "dp.pt." * 3, "xoxb-xoxb-", ("a" * 14 + ".atlasv1."), "12345678:AA", "aaa8Q~", f"{{\"password\": \"{TOKEN}\"}}, ")  # fmt: skip  # noqa: E501
    for text in near:
        yield repr(text[:40]), text
        yield repr(text[:40]) + " in JSON in JSON", json.dumps(json.dumps(text))
    yield "words and anchors", " ".join(rnd.choices([*anchors, "the", "value", "of", "=", ":", '"'], k=20_000))
