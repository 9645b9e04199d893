"""The background thread: jobs in order, results on the caller's side, and no job that ends it."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref

from tracewriter.background import Background


def collect(background: Background, count: int, results: list[object]) -> None:
    while len(results) < count:
        assert select.select([background.wake_fd], [], [], 5)[0]
        background.collect()


def test_jobs_run_in_order_and_their_results_come_back_here() -> None:
    background = Background()
    results: list[object] = []
    for number in range(100):
        background.submit(lambda n=number: n, results.append)  # type: ignore[misc]
    collect(background, 100, results)
    assert results == list(range(100))
    assert background.stop(5)


def test_a_failure_of_the_disk_and_a_bug_are_results_and_the_next_job_runs() -> None:
    told: list[str] = []
    background = Background(told.append)
    results: list[object] = []
    background.submit(lambda: os.fdatasync(-1), results.append)
    background.submit(lambda: os.stat("/no/such/thing"), results.append)
    background.submit(lambda: "still here", results.append)
    collect(background, 3, results)
    assert [type(result) for result in results] == [ValueError, FileNotFoundError, str]
    assert len(told) == 1
    assert "ValueError" in told[0]
    assert background.stop(5)


def test_all_jobs_given_are_done_before_the_end() -> None:
    background = Background()
    done: list[object] = []
    for _ in range(50):
        background.submit(lambda: None, done.append)
    assert background.stop(5)
    assert len(done) == 50


def test_an_open_waits_for_no_other_job_and_opens_stay_in_order() -> None:
    background = Background()
    let_go = threading.Event()
    results: list[object] = []
    background.submit(lambda: let_go.wait(30), lambda _: results.append("synced"))
    background.submit(lambda: None, lambda _: results.append("closed"))
    for number in range(10):
        background.submit_open(lambda n=number: n, results.append)  # type: ignore[misc]
    collect(background, 10, results)
    assert results == list(range(10))
    assert background.pending == 2
    let_go.set()
    collect(background, 12, results)
    assert results[10:] == ["synced", "closed"]
    assert background.stop(5)


def test_what_a_job_held_is_let_go_of_when_it_is_done() -> None:
    class Held:
        pass

    background = Background()
    results: list[object] = []
    for submit in (background.submit, background.submit_open):
        held = Held()
        gone = weakref.ref(held)
        submit(lambda held=held: None, lambda result, held=held: results.append(result))  # type: ignore[misc]
        del held
        collect(background, len(results) + 1, results)
        deadline = time.monotonic() + 10
        while gone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert background.stop(5)
