"""SIGKILL agentd in the middle of a run: what it sent is in the record, the missing end is told, and the next ask works."""

from __future__ import annotations

import threading

from tests.e2e.harness import Home, finish, of, records, wait_for
from tests.e2e.model import Answer, Asked, Model, call, stream, text

HALF = "The first half of the answer, "


def answers(hold: threading.Event) -> Model:
    """A model that writes a file, begins to speak and stalls; asked again, it just answers."""

    def decide(asked: Asked) -> Answer:
        if asked.prompt == "again":
            return stream(text("again it is"))
        if asked.turn == 0:
            return stream(call("write_file", path="note.txt", content="kept\n"))
        return stream(text(HALF, finish=False), hold, text("the second"))

    return Model(decide)


def test_what_was_sent_is_recorded_and_the_missing_end_is_told(home: Home) -> None:
    with answers(threading.Event()) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        model.wait_held()
        path = home.trace()
        wait_for(lambda: len(of("model.request.started", records(path))) == 2, "the second request in the record")
        home.kill_daemon()
        asked = finish(asking)
        assert asked.code == 1
        assert "agentd closed the connection before the run had ended" in asked.err
        assert "Traceback" not in asked.err

        found = records(path)
        assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
        assert of("tool.call.finished", found)[0]["is_error"] is False
        assert of("file.change.applied", found)[0]["path"] == "note.txt"
        assert not of("run.execute.finished", found)
        wait_for(lambda: "active" not in home.ctl("trace", "ls").out, "the recorder to see that its producer is gone")
        shown = home.ctl("trace", "show", path.name).ok()
        assert (
            f"end missing: the recording did not finish; whether anything came after record {len(found)}" in shown.out
        )
        summary = home.ctl("trace", "summary", path.name, "--json").ok().json()
        assert (summary["runs"][0]["outcome"], summary["runs"][0]["files"]) == ("end missing", ["note.txt"])
        home.sound(path)

        assert home.ask(model.url, "again").ok().out == "again it is\n"
        home.sound(home.traces()[1])


def test_the_session_goes_on_where_it_was_with_its_conversation_repaired(home: Home) -> None:
    with answers(threading.Event()) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        model.wait_held()
        path = home.trace()
        wait_for(lambda: len(of("model.request.started", records(path))) == 2, "the second request in the record")
        before = records(path)
        home.kill_daemon()
        finish(asking)

        home.ask(model.url, "-c", "again").ok()
        assert home.traces() == [path]
        found = records(path)
        assert found[: len(before)] == before
        assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
        assert [data["change"] for data in of("session.lifecycle.observed", found)] == ["created", "resumed"]
        assert [data["outcome"] for data in of("run.execute.finished", found)] == ["completed"]
        sent = model.asked[-1].body["messages"]
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
        assert sent[-1]["content"] == "again"
        home.sound(path)
        assert "end missing" in home.ctl("trace", "show", path.name).ok().out
        runs = home.ctl("trace", "summary", path.name, "--json").ok().json()["runs"]
        assert [run["outcome"] for run in runs] == ["end missing", "completed"]
