"""What a summary counts, and the ways in which others have got it wrong."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agentctl.summary import END_MISSING, RUNNING, RunSummary, Summary, summarise
from tests.agentctl import traces
from tests.agentctl.fake_daemon import RUN
from tracewriter.events import RawRecord, Usage
from tracewriter.findings import Found, Note

END = Note("end_missing", "end missing", last=1)
ACTIVE = Note("active", "active", last=1)


def found(line: str) -> Found:
    record = msgspec.json.decode(line, type=RawRecord)
    return Found(record, line.encode(), 1, 0, "verified", record.seq)


def of(lines: list[str], *notes: Note) -> Summary:
    return summarise([*map(found, lines), *notes])


def only(lines: list[str], *notes: Note) -> RunSummary:
    (run,) = of(lines, *notes).runs
    return run


def test_a_run_that_ended_is_told_by_its_end() -> None:
    run = only(
        [
            traces.started(1),
            traces.request(2),
            traces.replied(3),
            traces.called(4, "read_file", "a.py", "t1"),
            traces.result(5, "read_file", "t1"),
            traces.finished(6, tools=["read_file"]),
        ]
    )
    assert (run.prompt, run.mode, run.provider, run.model) == ("fix the bug", "build", "openai", "gpt-5")
    assert [(tool.name, tool.argument, tool.ok) for tool in run.tools] == [("read_file", "a.py", True)]
    assert (run.outcome, run.usage, run.cost_usd, run.duration_ms) == ("completed", Usage(150, 30), 0.002, 2500.0)
    assert (run.files, run.errors) == ((), ())


def test_a_run_that_an_earlier_recording_left_open_is_not_running() -> None:
    lines = [traces.opened(1), traces.started(2), traces.opened(3)]
    assert only(lines, ACTIVE).outcome == END_MISSING
    assert only(lines[:2], ACTIVE).outcome == RUNNING


def test_a_failed_call_changed_nothing_however_long_its_error_is() -> None:
    run = only(
        [
            traces.started(1),
            traces.called(2, "write_file", "refused.py", "t1"),
            traces.result(3, "write_file", "t1", is_error=True, output="outside the workspace\n" + "x" * 50_000),
            traces.finished(4),
        ]
    )
    assert run.files == ()
    assert run.tools[0].ok is False
    assert run.errors == ("write_file: outside the workspace",)


def test_a_call_that_only_might_have_changed_a_file_is_no_change() -> None:
    run = only(
        [traces.started(1), traces.called(2, "write_file", "a.py", "t1"), traces.result(3, "write_file", "t1")], END
    )
    assert run.files == ()


def test_a_large_write_is_not_lost_to_its_size() -> None:
    large = {"payload": "ab" * 16, "bytes": 90_000, "chars": 90_000, "head": "--- a"}
    run = only(
        [traces.started(1), traces.called(2, "write_file", "big.py", "t1"), traces.changed(3, "big.py", "t1", large)],
        END,
    )
    assert run.files == ("big.py",)
    assert run.tools[0].argument == "big.py"


def test_calls_with_the_same_id_are_told_apart_by_their_operation() -> None:
    run = only(
        [
            traces.started(1),
            traces.called(2, "write_file", "a", "t1"),
            traces.called(3, "write_file", "b", "t2"),
            traces.result(4, "write_file", "t2"),
            traces.result(5, "write_file", "t1", is_error=True, output="no"),
        ],
        END,
    )
    assert [(tool.argument, tool.ok) for tool in run.tools] == [("a", False), ("b", True)]


def test_an_open_run_is_running_or_its_end_is_missing() -> None:
    lines = [traces.started(1), traces.request(2), traces.replied(3), traces.called(4, "read_file", "a", "t1")]
    assert only(lines, ACTIVE).outcome == RUNNING
    run = only(lines, END)
    assert run.outcome == END_MISSING
    assert run.tools[0].ok is None
    assert (run.usage, run.cost_usd, run.duration_ms) == (Usage(100, 20), 0.001, 3000.0)


def test_one_unknown_cost_makes_the_sum_unknown_not_smaller() -> None:
    lines = [
        traces.started(1),
        traces.request(2),
        traces.replied(3),
        traces.request(4, "m2"),
        traces.replied(5, None, "m2"),
    ]
    run = only(lines, END)
    assert run.cost_usd is None
    assert run.usage == Usage(200, 40)
    assert only([traces.started(1)], END).cost_usd is None


def test_a_provider_error_is_in_the_summary_with_its_usage() -> None:
    data: dict[str, object] = {
        "error": {"kind": "auth", "message": "401"},
        "text": "",
        "reasoning": "",
        "cut_tool_calls": [],
    }
    failed = traces.record(
        2, "model.request.failed", {**data, "usage": None, "cost_usd": None, "duration_ms": 1.0}, op="m1"
    )
    run = only([traces.started(1), failed, traces.finished(3, outcome="failed", errors=["401"])])
    assert (run.outcome, run.errors) == ("failed", ("401",))


def test_two_runs_of_a_session_are_two() -> None:
    other = "0199ffffc3d57e5f8a9b0c1d2e3f4a5b"
    summary = of([traces.started(1), traces.finished(2), traces.started(3, "again", other)], END)
    assert [(run.run, run.prompt, run.outcome) for run in summary.runs] == [
        (RUN, "fix the bug", "completed"),
        (other, "again", END_MISSING),
    ]


def test_a_run_whose_beginning_is_lost_is_still_told() -> None:
    run = only([traces.result(7, "edit_file", "t1"), traces.changed(8, "a.py", "t1"), traces.finished(9)])
    assert run.prompt is None
    assert run.files == ("a.py",)
    assert run.tools[0].name == "edit_file"


def test_records_of_other_versions_break_nothing() -> None:
    lines = [
        traces.record(1, "some.new.observed", {"x": 1}),
        traces.record(2, "tool.call.started", {"strange": True}),
        traces.started(3),
    ]
    assert only(lines, END).prompt == "fix the bug"


def test_damage_is_passed_on() -> None:
    damage = Note("damaged", "12 bytes are not a record", 1, 10, 12)
    summary = of([traces.started(1)], damage, END)
    assert summary.damaged
    assert summary.notes == (damage, END)


EVERYTHING = [
    traces.opened(1),
    traces.started(2),
    traces.request(3),
    traces.replied(4),
    traces.called(5, "edit_file", "a.py", "t1"),
    traces.changed(6, "a.py", "t1"),
    traces.result(7, "edit_file", "t1"),
    traces.finished(8, files=["a.py"]),
]


@given(st.lists(st.sampled_from(EVERYTHING), max_size=12))
def test_any_selection_in_any_order_is_summarised(lines: list[str]) -> None:
    summary = of(lines, END)
    assert len(summary.runs) <= 1
    for run in summary.runs:
        assert set(run.files) <= {"a.py"}
        assert (run.outcome == "completed") == (EVERYTHING[7] in lines)
