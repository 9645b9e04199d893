"""agentctl trace over real files: what is read, what is said about what is not there, the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.__main__ import run
from agentd.paths import traces_dir
from tests.agentctl import traces
from tests.agentctl.fake_daemon import RUN, SESSION, Screen

Env = dict[str, str]

WHOLE = [
    traces.opened(1),
    traces.started(2),
    traces.request(3),
    traces.replied(4),
    traces.called(5, "edit_file", "a.py", "t1"),
    traces.changed(6, "a.py", "t1"),
    traces.result(7, "edit_file", "t1"),
    traces.finished(8, files=["a.py"], tools=["edit_file"]),
    traces.closed(9),
]


def shown(env: Env, *words: str, code: int = 0) -> str:
    screen = Screen(env)
    assert run(["trace", *words], screen.world) == code, screen.err
    return screen.out


def test_show_gives_every_record_in_order_and_a_verdict(env: Env) -> None:
    traces.write_session(env, WHOLE)
    lines = shown(env, "show", SESSION[:8]).splitlines()
    assert lines[0] == "2026-11-29" or lines[0].startswith("2026-11-")
    numbered = [line for line in lines if line[:6].strip().isdecimal()]
    assert [int(line[:6]) for line in numbered] == list(range(1, 10))
    assert "changed a.py" in numbered[5]
    assert "         +b" in lines
    assert lines[-1] == "9 records (1 to 9): no damage seen"


def test_show_says_that_the_end_is_missing(env: Env) -> None:
    traces.write_session(env, WHOLE[:5])
    lines = shown(env, "show", "last").splitlines()
    assert lines[-2] == "5 records (1 to 5): no damage seen"
    assert lines[-1].startswith("end missing: ")


def test_an_earlier_recording_that_did_not_end_is_noted_where_it_stopped(env: Env) -> None:
    traces.write_session(env, [*WHOLE[:2], traces.opened(3), traces.closed(4)])
    lines = shown(env, "show", SESSION).splitlines()
    at = {line[:6].strip(): index for index, line in enumerate(lines)}
    assert at["2"] < at["---"] < at["3"]
    assert lines[-1] == "4 records (1 to 4): no damage seen"


def test_damage_is_noted_in_its_place_and_its_neighbours_are_shown(env: Env) -> None:
    traces.write_session(env, [*WHOLE[:3], '{"seq":4,"ts":"2026-', *WHOLE[4:]])
    lines = shown(env, "show", SESSION, code=5).splitlines()
    at = {line[:6].strip(): index for index, line in enumerate(lines)}
    assert at["3"] < at["!!!"] < at["5"]
    assert "DAMAGE FOUND" in lines[-1]


def test_show_as_json_is_the_stored_lines_the_notes_and_the_verdict(env: Env) -> None:
    lines = [*WHOLE[:3], "garbage", *WHOLE[4:]]
    traces.write_session(env, lines)
    out = shown(env, "show", SESSION, "--json", code=5).splitlines()
    assert [line for line in out if line.startswith('{"seq"')] == [*WHOLE[:3], *WHOLE[4:]]
    notes = [json.loads(line)["note"] for line in out if line.startswith('{"note"')]
    assert {"damaged", "gap"} >= {note["kind"] for note in notes if note["damage"]} != set()
    verdict = json.loads(out[-1])["verdict"]
    assert (verdict["damaged"], verdict["records"], verdict["last"]) == (True, 8, 9)


def test_show_of_one_run_leaves_the_others_out(env: Env) -> None:
    other = "0199ffffc3d57e5f8a9b0c1d2e3f4a5b"
    traces.write_session(env, [*WHOLE[:8], traces.started(9, run=other), traces.closed(10)])
    out = shown(env, "show", SESSION, "--run", RUN[:12])
    assert "run.execute.finished" in out
    assert "\n     9 " not in out


@pytest.mark.parametrize("command", ["show", "summary"])
@pytest.mark.parametrize(
    ("typed", "words"), [("ffff", "no run 'ffff' in this session"), ("0199", "more than one run '0199'")]
)
def test_a_run_that_is_not_one_is_named_with_those_that_are(env: Env, command: str, typed: str, words: str) -> None:
    other = "0199ffffc3d57e5f8a9b0c1d2e3f4a5b"
    traces.write_session(env, [*WHOLE[:8], traces.started(9, run=other), traces.closed(10)])
    for more in ([], ["--json"]):
        screen = Screen(env)
        assert run(["trace", command, SESSION, "--run", typed, *more], screen.world) == 2
        assert words in screen.err
        assert f"its runs: {RUN}, {other}" in screen.err
        assert screen.out == ""
    assert shown(env, command, SESSION, "--run", other[:8].upper())


READERS = ("show", "verify", "summary", "tail")


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("typed", ["t", "./t", "t/", "{cwd}/t", "../{name}/t"])
def test_the_directory_of_a_trace_needs_no_slash(env: Env, command: str, typed: str) -> None:
    path = traces.write_session(env, WHOLE)
    moved = Path(env["HOME"], "elsewhere", "t")
    moved.parent.mkdir()
    path.rename(moved)
    screen = Screen(env, cwd=str(moved.parent))
    assert run(["trace", command, typed.format(cwd=moved.parent, name="elsewhere")], screen.world) == 0
    assert screen.out


def test_an_id_wins_over_a_directory_of_that_name(env: Env) -> None:
    traces.write_session(env, WHOLE)
    other = Path(env["HOME"], SESSION[:8])
    traces.write_session(env, WHOLE[:2], "x").rename(other)
    screen = Screen(env, cwd=env["HOME"])
    assert run(["trace", "verify", SESSION[:8]], screen.world) == 0
    assert "9 records" in screen.out
    screen = Screen(env, cwd=env["HOME"])
    assert run(["trace", "verify", f"./{SESSION[:8]}"], screen.world) == 0
    assert "2 records" in screen.out


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("typed", ["/etc", "./empty", "empty", "./sessions"])
def test_a_directory_without_a_trace_is_no_trace(env: Env, command: str, typed: str) -> None:
    Path(env["HOME"], "empty").mkdir()
    path = traces.write_session(env, WHOLE)
    Path(env["HOME"], "sessions").symlink_to(path.parent)
    screen = Screen(env, cwd=env["HOME"])
    assert run(["trace", command, typed], screen.world) == 2
    assert screen.err.startswith("agentctl: no trace is here: ")
    assert "agentctl trace ls" in screen.err
    assert screen.out == ""


@pytest.mark.parametrize("left", ["000001.seal", "manifest.json", "digests"])
def test_what_is_left_of_a_trace_is_judged_not_refused(env: Env, left: str) -> None:
    place = Path(env["HOME"], "t")
    place.mkdir()
    (place / left).touch()
    screen = Screen(env, cwd=env["HOME"])
    run(["trace", "verify", "./t"], screen.world)
    assert "no trace is here" not in screen.err
    assert screen.out


def test_verify_says_intact_or_not(env: Env) -> None:
    traces.write_session(env, WHOLE)
    assert "intact and complete: 9 records (0 verified by hash), 1 segment" in shown(env, "verify", SESSION)
    bad = "0199a1b2c3d47e5f8a9b0c1d2e3f4a5c"
    traces.write_session(env, [*WHOLE[:3], "garbage", *WHOLE[4:]], bad)
    out = shown(env, "verify", bad, code=5)
    assert out.startswith("0199a1b2c3d47e5f  DAMAGED: 8 records")


def test_verify_all_reports_each_session_and_the_worst_decides(env: Env) -> None:
    traces.write_session(env, WHOLE)
    traces.write_session(env, WHOLE[:4], "0199a1b2c3d47e5f8a9b0c1d2e3f4a5c")
    rows = [json.loads(line) for line in shown(env, "verify", "--all", "--json").splitlines()]
    assert [(row["session"][-1], row["damaged"], row["emitted"]) for row in rows] == [
        ("b", False, 9),
        ("c", False, None),
    ]
    traces.write_session(env, [*WHOLE[:3], "garbage", *WHOLE[4:]], "0299")
    assert shown(env, "verify", "--all", code=5).count("DAMAGED") == 1


def test_an_unfinished_tail_is_no_damage(env: Env) -> None:
    traces.write_session(env, WHOLE[:4], tail='{"seq":5,"ts":"2026-11')
    assert "end missing (unknown after 4)" in shown(env, "verify", SESSION)


def test_summary_for_people(env: Env) -> None:
    traces.write_session(env, WHOLE)
    assert shown(env, "summary", SESSION).splitlines()[0] == f"session {SESSION} in {traces.WORKSPACE}"
    facts = [line.strip() for line in shown(env, "summary", SESSION).splitlines()[2:]]
    assert facts[:9] == [
        "prompt    fix the bug",
        "model     openai/gpt-5, build mode, 1 request",
        "tools     ✓ edit_file a.py  3 ms",
        "files     a.py",
        "errors    none",
        "outcome   completed",
        "usage     150 in / 30 out tokens",
        "cost      $0.002",
        "duration  2.5 s",
    ]


def test_summary_as_json_is_one_document(env: Env) -> None:
    path = traces.write_session(env, WHOLE)
    document = json.loads(shown(env, "summary", SESSION, "--json", "--run", RUN))
    assert (document["session"], document["path"], document["damaged"]) == (SESSION, str(path), False)
    assert document["runs"][0]["files"] == ["a.py"]
    assert document["runs"][0]["outcome"] == "completed"


def test_a_run_that_is_not_there_is_named(env: Env) -> None:
    traces.write_session(env, WHOLE)
    screen = Screen(env)
    assert run(["trace", "summary", SESSION, "--run", "ffff"], screen.world) == 2
    assert "no run 'ffff'" in screen.err
    assert RUN in screen.err


def test_ls_is_newest_first(env: Env) -> None:
    assert shown(env, "ls") == ""
    traces.write_session(env, WHOLE[:3], "0199a1b2c3d47e5f8a9b0c1d2e3f4a5c")
    traces.write_session(env, WHOLE)
    lines = shown(env, "ls").splitlines()
    assert [line.split()[3] for line in lines] == ["9", "3"]
    assert all(line.endswith(traces.WORKSPACE) for line in lines)
    document = json.loads(shown(env, "ls", "--json"))
    assert document["root"] == traces_dir(env)
    assert [entry["session"][-1] for entry in document["sessions"]] == ["b", "c"]


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        (SESSION, 0, ""),
        (SESSION.upper()[:20], 2, "ambiguous"),
        ("0199a1b2", 2, "0199a1b2c3d47e5f8a9b0c1d2e3f4a5c"),
        ("foreign-1", 0, ""),
        ("foreign-", 2, "foreign-10"),
        ("last", 0, ""),
        ("ffff", 2, "no session 'ffff' is recorded"),
        ("", 2, "no session"),
        ("./nowhere", 2, "there is no directory"),
    ],
)
def test_ids_are_shortened_like_gits(env: Env, typed: str, code: int, words: str) -> None:
    for session in (SESSION, "0199a1b2c3d47e5f8a9b0c1d2e3f4a5c", "foreign-1", "foreign-10"):
        traces.write_session(env, WHOLE, session)
    screen = Screen(env)
    assert run(["trace", "verify", typed], screen.world) == code
    assert words in screen.err


def test_a_directory_can_be_named(env: Env) -> None:
    path = traces.write_session(env, WHOLE)
    screen = Screen(env, cwd=str(path.parent))
    assert run(["trace", "verify", f"./{SESSION}"], screen.world) == 0


def test_a_record_that_is_gone_is_one_line(env: Env) -> None:
    path = traces.write_session(env, WHOLE)
    link = Path(env["HOME"], "link")
    link.symlink_to(path)
    screen = Screen(env, cwd=env["HOME"])
    assert run(["trace", "show", "./link"], screen.world) == 2
    assert "not there" in screen.err


def test_nobody_recorded_anything(env: Env) -> None:
    screen = Screen(env)
    assert run(["trace", "show", "last"], screen.world) == 2
    assert "nothing is recorded in" in screen.err


def test_show_stops_when_nobody_reads_on(env: Env) -> None:
    traces.write_session(env, WHOLE)
    screen = Screen(env)
    written: list[str] = []

    def write(text: str) -> int:
        if len(written) > 2:
            raise BrokenPipeError
        written.append(text)
        return len(text)

    screen.stdout.write = write  # type: ignore[method-assign]
    assert run(["trace", "show", SESSION], screen.world) == 0
    assert len(written) == 3
