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
        b"pcsk_", b"oy2", b"mysql", b"sk_", b"sgp_", b"pikey", b"gls", b"GOCSPX-",
        b"ABSKQm", b"EAA", b"-END ", b"r8_", b"igd_", b"eyJ", b"fc-", b"tvly-",
        b"vck_", b"fo1_", b"dp.", b"rk_test_", b"cflt", b"ey-", b"vcp_", b"api-",
        b"sl.u.", b"OKEN", b"-us", b"sv1.", b"PWD", b"sk-", b"glrt-", b"AKIA",
    ),
    (
        b"n_api_", b"rnd_", b"MTE", b"sq0", b"AGE-SECRET-KEY-1", b"MTI", b"gsk_", b"dckr_",
        b":AA", b"sntry", b"MTA", b"squ_", b"sig=", b"ASIA", b"8Q~", b"npm_",
        b"NRAK-", b"phx_", b"hub_pat_", b"sqa_", b"slack.com", b"ATBB", b"lsv2_", b"glc",
        b"GR13489", b"Pwd", b"hvb.", b"PMAK-", b"sbp_", b"rer ", b"ntn_", b"tskey-",
    ),
    (
        b"xapp-", b'uth"', b"uth=", b"sl.B", b"hf_", b"MTQ", b"sqp_", b"oken",
        b"napi_", b"rubygems_", b"uth\\", b"sl.A", b"nfp_", b"SSW", b"pypi-", b"okie",
        b"HRKU-", b"uthorization", b"sdk-", b'"re_', b"ghp_", b"MTU", b"e-Lines: ", b"ghu_",
        b"dapi", b"MTk", b"UTHORIZATION", b"'re_", b"glp", b"ccess-", b"7Q~", b"gho_",
    ),
    (
        b"ecret", b"hvs.", b"MTg", b"ssw", b"_v1_", b"plx-", b"MTc", b"CCIP",
        b"e2b_", b"ghr_", b"FlyV1 ", b"CFPAT-", b"ya29", b'pass"', b"pul-", b"shp",
        b"jina_", b"ghs_", b"MTM", b"ssphr", b"SG.", b"AKCp", b"pwd", b"snyk_",
        b"ebhook", b"whsec_", b"TT3x", b"ECRET", b"pa-", b"vapi-", b"pscale_", b"xox",
    ),
    (
        b"1//0", b"Key", b"AIza", b"pat-na1", b"xai-", b"gloas-", b"pass\\", b"live_",
        b"=re_", b"BEGIN ", b"-key", b"pat-eu1", b"\\u00", b"gldt-", b"pass:", b" -u ",
        b"ure=", b"KEY", b"IQoJb3", b"AZDO", b"\\/\\/", b"glagent-", b"PASS=", b"fw_",
        b"://", b"MTY", b"_key", b"AQ.Ab", b"\\/\\\\/", b"glimt-", b"pass=", b"cmVmdGtu",
    ),
)  # fmt: skip
