"""The anchors of all rules, dealt out to automata in the order in which the search is fast.

ahocorasick_rs searches with SIMD (Teddy, by the first three bytes) as long as an automaton has at most 32 strings: more make it
several times slower, over 64 thirty times. The n-th string goes into bucket n mod 8, and a bucket lets through any mix of its
strings' half bytes: so strings that look alike share one. A test says when an anchor is missing here; the bench when an order is
slow.
"""

from __future__ import annotations

from typing import Final

AUTOMATA: Final[tuple[tuple[bytes, ...], ...]] = (
    (
        b"ntn_", b"glrt-", b"shp", b"igd_", b"live_", b"ECRET", b"hub_pat_", b"hvb.",
        b"dckr_", b"ghu_", b"sig=", b"NRAK-", b"fo1_", b"ASIA", b"BEGIN ", b"ghp_",
        b"gsk_", b"ey-", b"slack.com", b"ecret", b"://", b"okie", b"gho_", b"dp.",
        b"npm_", b"hf_", b"tskey-", b"ghs_", b"_v1_", b"ebhook", b"\\u00", b"glsa_",
    ),
    (
        b"rer ", b" -u ", b"-key", b"-user", b"dapi", b"r8_", b"ure=", b"AGE-SECRET-KEY-1",
        b"AIza", b"\\/\\\\/", b"ya29", b"SG.", b"AKIA", b"sv1.", b"vapi-", b"whsec_",
        b"8Q~", b"pul-", b"OKEN", b"HRKU-", b"eyJ", b"sk_", b"xox", b"ghr_",
        b"Key", b"_KEY", b"GOCSPX-", b"TT3x", b"\\/\\/", b"sk-", b"-Key", b"PWD",
    ),
    (
        b":AA", b"FlyV1 ", b"xapp-", b"sntry", b"UTHORIZATION", b"ssphr", b"_key", b"7Q~",
        b'uth"', b"uthorization", b"pass=", b"sbp_", b"oken", b"pypi-", b"n_api_", b"SSW",
        b"xai-", b"glpat-", b'pass"', b"-KEY", b"plx-", b"pwd", b"pass\\", b"pscale_",
        b"PASS=", b"hvs.", b"uth=", b"ssw", b"pikey", b"PMAK-", b"uth\\", b"Pwd",
    ),
)  # fmt: skip
