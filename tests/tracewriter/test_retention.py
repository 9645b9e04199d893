"""The plan is pure: what it may never take, in which order it takes, and that its sums are right."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewriter.retention import (
    DAY_S,
    EARLIEST_S,
    FUTURE_S,
    TRASH_S,
    Candidate,
    ClockTrust,
    Plan,
    Policy,
    PolicyError,
    Trashed,
    checked,
    forecast,
    load_policy,
    plan,
)

NOW = 1_800_000_000.0
WORKSPACES = st.sampled_from(["0" * 24, "f" * 24])


def _times() -> st.SearchStrategy[float]:
    days = st.floats(-3, 400, allow_nan=False)
    return st.one_of(days.map(lambda d: NOW - d * DAY_S), st.sampled_from([0.0, 1.0, NOW, NOW + 10 * DAY_S]))


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        workspace=WORKSPACES,
        session=st.text("abc0", min_size=1, max_size=3),
        last_at=_times(),
        bytes=st.integers(0, 10_000),
        active=st.booleans(),
        pinned=st.booleans(),
        doubt=st.sampled_from(["", "", "", "it belongs to another user"]),
        empty=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda c: (c.workspace, c.session),
)
TRASH = st.lists(
    st.builds(Trashed, st.text("abc", min_size=1, max_size=6), _times(), st.integers(0, 10_000), st.booleans()),
    max_size=10,
    unique_by=lambda t: t.name,
)
POLICIES = st.builds(Policy, st.floats(0.001, 500), st.integers(1, 100_000))


def old(number: int, days: float, size: int = 100, **more: bool | str) -> Candidate:
    return msgspec.structs.replace(Candidate("0" * 24, f"s{number}", NOW - days * DAY_S, size), **more)


def chosen(decided: Plan) -> list[str]:
    return [move.candidate.session for move in decided.moves]


# --- for all inputs


@given(CANDIDATES, TRASH, POLICIES, st.booleans())
def test_nothing_in_use_kept_odd_or_out_of_time_is_ever_taken_nor_the_newest_record(
    candidates: list[Candidate], trash: list[Trashed], policy: Policy, trusted: bool
) -> None:
    decided = plan(candidates, trash, policy, NOW, clock_trusted=trusted)
    taken = [move.candidate for move in decided.moves]
    assert not [c for c in taken if c.active or c.pinned or c.doubt or not EARLIEST_S <= c.last_at <= NOW + FUTURE_S]
    plausible = [c for c in candidates if not c.doubt and not c.empty and EARLIEST_S <= c.last_at <= NOW + FUTURE_S]
    if plausible:
        assert max(plausible, key=lambda c: (c.last_at, c.session, c.workspace)) not in taken
    assert len(set(map(id, taken))) == len(taken)


@given(CANDIDATES, TRASH, POLICIES, st.booleans())
def test_a_sweep_takes_a_fifth_at_most_and_the_oldest_first(
    candidates: list[Candidate], trash: list[Trashed], policy: Policy, trusted: bool
) -> None:
    decided = plan(candidates, trash, policy, NOW, clock_trusted=trusted)
    assert len(decided.moves) <= max(1, len(candidates) // 5)
    ages = [(m.candidate.last_at, m.candidate.session) for m in decided.moves]
    assert ages == sorted(ages)
    reasons = [m.reason for m in decided.moves]
    assert reasons == sorted(reasons)  # age, then budget
    if ages:
        spared = [
            (c.last_at, c.session)
            for c in candidates
            if not (c.active or c.pinned or c.doubt) and c not in [m.candidate for m in decided.moves]
        ]
        skipped = [a for a in spared if a[0] >= EARLIEST_S and a < ages[-1]]
        # only the newest record may be older than something that goes (an empty directory), and only one is that
        assert len(skipped) <= 1


@given(CANDIDATES, TRASH, POLICIES, st.booleans())
def test_the_sums_are_right(candidates: list[Candidate], trash: list[Trashed], policy: Policy, trusted: bool) -> None:
    decided = plan(candidates, trash, policy, NOW, clock_trusted=trusted)
    assert decided.total_bytes == sum(c.bytes for c in candidates) + sum(t.bytes for t in trash)
    freed = sum(t.bytes for t in decided.purge) + sum(m.candidate.bytes for m in decided.moves)
    assert decided.over == max(0, decided.total_bytes - freed - policy.max_bytes)
    # nothing goes for the budget once it is kept to: without the last one that does, it would not be
    if decided.moves and decided.moves[-1].reason == "budget":
        assert decided.total_bytes - freed + decided.moves[-1].candidate.bytes > policy.max_bytes
        assert set(decided.purge) == set(trash)  # trash goes before any session does


@given(CANDIDATES, TRASH, POLICIES)
def test_without_a_trusted_clock_nothing_goes_by_age(
    candidates: list[Candidate], trash: list[Trashed], policy: Policy
) -> None:
    roomy = msgspec.structs.replace(policy, max_bytes=10**12)
    decided = plan(candidates, trash, roomy, NOW, clock_trusted=False)
    assert decided.moves == ()
    assert all(one.doomed for one in decided.purge)


@given(CANDIDATES, TRASH, POLICIES, st.booleans(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_what_was_found(
    candidates: list[Candidate], trash: list[Trashed], policy: Policy, trusted: bool, shuffle: object
) -> None:
    mixed, mixed_trash = list(candidates), list(trash)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    shuffle.shuffle(mixed_trash)  # type: ignore[attr-defined]
    first = plan(candidates, trash, policy, NOW, clock_trusted=trusted)
    assert plan(mixed, mixed_trash, policy, NOW, clock_trusted=trusted) == first


@given(CANDIDATES, TRASH, POLICIES)
def test_the_forecast_names_what_a_sweep_would_take_first(
    candidates: list[Candidate], trash: list[Trashed], policy: Policy
) -> None:
    decided = plan(candidates, trash, policy, NOW, clock_trusted=True)
    said = forecast(candidates, trash, policy, NOW)
    if decided.moves:
        assert said is not None
        assert (said.session, said.at, said.reason) == (chosen(decided)[0], NOW, decided.moves[0].reason)
    elif said is not None:
        assert said.at + 1 >= NOW
    assert forecast(candidates, trash, msgspec.structs.replace(policy, enabled=False), NOW) is None


# --- by example


def test_the_order_is_expired_trash_then_age_then_old_trash_then_the_oldest_sessions() -> None:
    trash = [Trashed("t-expired", NOW - TRASH_S - 1, 10), Trashed("t-new", NOW - 60, 10), Trashed("t-newer", NOW, 10)]
    sessions = [old(n, days) for n, days in enumerate([40, 39, 5, 4, 3, 2, 1.5, 1.2, 1.1, 1, 0.5, 0.4, 0.3, 0.2, 0.1])]
    decided = plan(sessions, trash, Policy(max_bytes=1225), NOW, clock_trusted=True)
    # 1530 in all: 10 expired and 200 by age leave 1320 for 1225; both trashed give 20, one session the rest
    assert [one.name for one in decided.purge] == ["t-expired", "t-new", "t-newer"]
    assert [(m.candidate.session, m.reason) for m in decided.moves] == [("s0", "age"), ("s1", "age"), ("s2", "budget")]
    assert (decided.total_bytes, decided.over, decided.held_back) == (1530, 0, 0)


def test_a_gib_of_active_sessions_is_over_the_budget_and_none_of_them_goes() -> None:
    sessions = [old(n, 100 + n, 2**27, active=True) for n in range(10)]
    decided = plan(sessions, [], Policy(), NOW, clock_trusted=True)
    assert (decided.moves, decided.over) == ((), 10 * 2**27 - 2**30)
    assert forecast(sessions, [], Policy(), NOW) is None


def test_the_fifth_counts_over_the_rounds_of_one_sweep() -> None:
    sessions = [old(n, 100 + n) for n in range(8)]
    assert len(plan(sessions, [], Policy(), NOW, clock_trusted=True, moved=2).moves) == 0
    assert len(plan(sessions, [], Policy(), NOW, clock_trusted=True, moved=1).moves) == 0
    assert (
        len(plan([*sessions, *(old(n, 200) for n in range(90, 92))], [], Policy(), NOW, clock_trusted=True).moves) == 2
    )


def test_what_age_may_not_take_yet_is_told() -> None:
    sessions = [old(n, 40 + n) for n in range(20)]
    decided = plan(sessions, [], Policy(), NOW, clock_trusted=True)
    assert (len(decided.moves), decided.held_back) == (4, 15)
    assert plan(sessions, [], Policy(), NOW, clock_trusted=False).held_back == 19


def test_an_empty_directory_is_never_the_newest_that_shields() -> None:
    sessions = [old(1, 50), old(2, 40), old(3, 0, empty=True)]
    assert chosen(plan(sessions, [], Policy(max_bytes=1), NOW, clock_trusted=True)) == ["s1"]
    assert chosen(plan(sessions[1:], [], Policy(max_bytes=1), NOW, clock_trusted=True)) == ["s3"]


def test_a_record_of_a_clock_that_was_never_set_is_no_old_record() -> None:
    sessions = [msgspec.structs.replace(old(1, 0), last_at=3600.0), *[old(n, 1) for n in range(2, 9)]]
    assert plan(sessions, [], Policy(), NOW, clock_trusted=True).moves == ()


# --- the clock


def test_the_clock_is_trusted_after_an_hour_in_step_and_a_jump_ends_it_for_another() -> None:
    trust = ClockTrust(1000.0, 0.0)
    assert [trust.trusted(1000.0 + t, t) for t in (0, 1800, 3599)] == [False] * 3
    assert trust.trusted(4600.0, 3600.0)
    assert trust.trusted(4600.0 + 59, 3600.0)
    assert not trust.trusted(4600.0 + 40 * DAY_S, 3601.0)
    assert not trust.trusted(4600.0 + 40 * DAY_S + 3598, 7199.0)
    assert trust.trusted(4600.0 + 40 * DAY_S + 3600, 7201.0)


@given(st.lists(st.tuples(st.floats(0.1, 900), st.floats(-1e7, 1e7).filter(lambda j: abs(j) > 61)), max_size=20))
def test_whatever_jumps_within_an_hour_the_clock_is_not_trusted(steps: list[tuple[float, float]]) -> None:
    wall, mono = 1.8e9, 0.0
    trust = ClockTrust(wall, mono)
    for wait, jump in steps:
        wall, mono = wall + wait + jump, mono + wait
        assert not trust.trusted(wall, mono)


# --- the policy


@pytest.mark.parametrize(
    "text",
    [
        "[retention\n",
        "retention = 5",
        "[retention]\nmax_age_days = 'thirty'",
        "[retention]\nmax_age_days = -1",
        "[retention]\nmax_age_days = nan",
        "[retention]\nmax_age_days = true",
        "[retention]\nmax_bytes = 0",
        "[retention]\nmax_bytes = 1.5",
        "[retention]\ncleanup_period_days = 1825",
        "[retention]\nenabled = 'no'",
        "\udcff\udcfe",
        "a=" + "[" * 100_000,
        "#" * (1024 * 1024 + 1),
    ],
)
def test_an_odd_config_is_an_error_and_never_a_default(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert "\n" not in str(caught.value).strip()
    assert "nothing is deleted" in str(caught.value)


def test_what_is_no_file_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "away")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "plain").touch()
    for name in ("directory", "fifo", "dangling", "loop", "plain/config.toml"):
        with pytest.raises(PolicyError, match="cannot be read"):
            load_policy(tmp_path / name)


def test_no_file_or_no_table_means_the_defaults(tmp_path: Path) -> None:
    assert load_policy(None) == load_policy(tmp_path / "none") == Policy(30.0, 2**30, True)
    (tmp_path / "config.toml").write_text("model = 'a/b'\n")
    assert load_policy(tmp_path / "config.toml") == Policy()
    (tmp_path / "link.toml").symlink_to("config.toml")
    (tmp_path / "config.toml").write_text("[retention]\nmax_age_days = 1825\nmax_bytes = 9\n")
    assert load_policy(tmp_path / "link.toml") == Policy(1825, 9)
    with pytest.raises(PolicyError):
        checked(Policy(max_age_days=0), "x")
