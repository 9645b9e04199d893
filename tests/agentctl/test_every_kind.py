"""Every kind of event has its words and its bodies, whatever is in it; kinds of other versions are shown as they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from agentctl.trace_bodies import bodies
from agentctl.trace_lines import facts
from tests.strategies import nasty_events
from tracewriter.events import (
    ApprovalRequestDecided,
    ApprovalRequestRequested,
    Attachment,
    ConfigChangeFailed,
    ConfigChangeRequested,
    ContextCompactFailed,
    ContextCompactFinished,
    ContextCompactStarted,
    Event,
    Failure,
    FileCheckFailed,
    InputPrepareFinished,
    PolicyPresetObserved,
    SessionSaveFinished,
    SessionSaveStarted,
    SkillSelectObserved,
    ToolCallFinished,
    UnknownEvent,
    WorkspaceChangeObserved,
    event_of,
    name_of,
)

WHY = Failure("store", "the disk is full")
SAID: list[tuple[Event, str]] = [
    (SessionSaveStarted("ab12", 4), "from message 4 on, for prompt ab12"),
    (SessionSaveFinished("ab12", 3, 12.0), "3 messages in 12 ms"),
    (
        PolicyPresetObserved("build", ("read_file", "edit_file"), ("edit_file",), "workspace", 25, 1, 1, 0.5),
        "build: 2 tools, edit_file may write (workspace), 25 turns at most, $0.5000 at most",
    ),
    (PolicyPresetObserved("plan", (), (), "none", 25, 1, 1, None), "plan: 0 tools, nothing may write, 25 turns at most"),
    (
        InputPrepareFinished("ab", 1200, 2, 3400, 9, (Attachment("image", "a.png", "image/png", 5, None),), 0.1),
        "1,200 characters after 2 earlier messages (3,400 characters), image a.png",
    ),
    (SkillSelectObserved("deploy", "skills/deploy.md", "user", 1200), "deploy by user, 1,200 characters"),
    (
        ApprovalRequestRequested("a1", "c1", "run_shell", "shell", "run `make`?", Raw(b"{}")),
        "run_shell (shell): “run `make`?”",
    ),
    (ApprovalRequestDecided("a1", "allowed", "client", "once", 1500.0), "allowed by client, once, after 1.5 s"),
    (FileCheckFailed("a.py", "unread", Failure("refused", "a.py: read it first")), "unread: a.py: read it first"),
    (WorkspaceChangeObserved("a.py", "changed", "edit"), "a.py was changed by somebody else (noticed by edit)"),
    (ContextCompactStarted("auto", 40, 200_000), "auto: 40 messages, 200,000 characters"),
    (ContextCompactFinished(200_000, 9_000, 4, "we did x", 5.0), "200,000 → 9,000 characters: “we did x”"),
    (ContextCompactFailed(WHY, 2000.0), "the disk is full after 2.0 s"),
    (ToolCallFinished("c1", "search", "no such path", True, 3.0), "search failed in 3 ms: no such path"),
    (ToolCallFinished("c1", "search", "", True, 3.0, chars=12), "search failed in 3 ms"),
    (ConfigChangeRequested("mode", "build"), "mode = build"),
    (ConfigChangeFailed("mode", "fast", Failure("bad_mode", "there is no mode 'fast'")), "mode = fast: there is no mode 'fast'"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "said"), SAID, ids=[f"{n}-{name_of(event)}" for n, (event, _) in enumerate(SAID)])
def test_what_is_said_of_a_kind(event: Event, said: str) -> None:
    assert facts(event) == said


@given(nasty_events)
def test_every_kind_has_words_and_bodies_whatever_is_in_it(event: Event) -> None:
    assert isinstance(facts(event), str)
    assert all(name and text for name, text in bodies(event))


def test_a_kind_of_another_version_is_shown_as_it_is() -> None:
    for name, data in (("later.kind.observed", b'{"x":[1,"two"]}'), ("tool.call.started", b'{"renamed":"two"}')):
        event = event_of(name, Raw(data))
        assert isinstance(event, UnknownEvent)
        assert facts(event) == data.decode()
        assert bodies(event) == [("data", data.decode())]
        assert msgspec.json.encode(event.data) == data
