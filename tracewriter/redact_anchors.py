"""The anchors of all rules, dealt out to automata in the order in which the search is fast.

ahocorasick_rs searches with SIMD (Teddy, by the first three bytes) as long as an automaton has at most 32 strings: more make it
several times slower, over 64 thirty times. The n-th string goes into bucket n mod 8, and a bucket lets through any mix of its
strings' half bytes: so strings that look alike share one. The order was found by exchanging strings between buckets for as long
as fewer places in code, prose and records looked like an anchor: one that begins as common words do (` re_`, `"re_`) halves the
speed of all. A test says when an anchor is missing here; the bench when an order is slow.
"""

from __future__ import annotations

from typing import Final

AUTOMATA: Final[tuple[tuple[bytes, ...], ...]] = (
    (
        b"GOCSPX-", b"glagent-", b"uthorization", b"pa-", b"xapp-", b"plx-", b"ghu_", b"\\u00",
        b"AKIA", b"gloas-", b"uth\\", b"fc-", b"EAA", b"hf_", b"whsec_", b"\\/\\/",
        b"e-Lines: ", b"glimt-", b"sdk-", b"sl.B", b"OKEN", b"pcsk_", b"MTU", b"\\/\\\\/",
        b"AKCp", b"gsk_", b"xox", b"cmVmdGtu", b"xai-", b"gls", b"ghs_", b"pul-",
    ),
    (
        b"ey-", b"MTk", b"dckr_", b"hvb.", b"squ_", b"GR13489", b"ghp_", b"MTM",
        b"eyJ", b"ntn_", b"TT3x", b"ghr_", b"AIza", b"fw_", b"ecret", b"MTI",
        b"ccess-", b"npm_", b"glc", b"gho_", b"ure=", b"glp", b"phx_", b"MTE",
        b"esend(", b"tskey-", b"gldt-", b"api-", b"'re_", b"glrt-", b"vcp_", b"mysql",
    ),
    (
        b"okie", b"-us", b"_v1_", b"MTQ", b"sqp_", b"7Q~", b"sl.u.", b"FlyV1 ",
        b"oken", b"MTg", b"napi_", b"live_", b"sq0", b"8Q~", b"slack.com", b"AQ.Ab",
        b"ebhook", b"MTA", b"dapi", b"lsv2_", b"AZDO", b"IQoJb3", b"sl.A", b"1//0",
        b"fo1_", b"MTc", b"nfp_", b"MTY", b"SSPHR", b"dp.", b"sv1.", b"://",
    ),
    (
        b"PWD", b"ATBB", b"shp", b"UTHORIZATION", b"_key", b"rer ", b"AGE-SECRET-KEY-1", b"snyk_",
        b"igd_", b"rubygems_", b"sk_", b"uth=", b"SSW", b"Key", b"=re_", b"ssw",
        b":AA", b"hub_pat_", b"r8_", b'uth"', b"ECRET", b"ASIA", b"CFPAT-", b"ssphr",
        b"n_api_", b"BEGIN ", b"rk_test_", b"-END ", b"-key", b"KEY", b"ABSKQm", b"CCIP",
    ),
    (
        b"sk-", b"sgp_", b"vapi-", b"pypi-", b'pass"', b"SG.", b"pscale_", b"PMAK-",
        b"rnd_", b"HRKU-", b"pass:", b"oy2", b"pat-eu1", b"e2b_", b"Pwd", b"NRAK-",
        b"sntry", b"sbp_", b"PASS=", b"hvs.", b"pass=", b"jina_", b"tvly-", b"pikey",
        b"vck_", b"sig=", b"pass\\", b" -u ", b"pat-na1", b"cflt", b"pwd", b"ya29",
    ),
)  # fmt: skip
