"""The doctor's checks run apart from each other: none can hang, crash or silence another."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcprof.doctor import lanes
from hpcprof.doctor.registry import NODE, Check
from hpcprof.doctor.row import MOST_BYTES, NOT_CHECKED, OK, Row, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject
from hpcprof.launch import processes
from tests.unit.launching import wait_until

pytestmark = pytest.mark.unit

SUBJECT = Subject(Request(), dict(os.environ))


def check(function, *, name: str = "it", lane: str = "a", limit_s: float = 20.0) -> Check:
    return Check(name, "", NODE, lane, limit_s, "Do this instead.", function)


def run(*checks: Check, seconds: float = 20.0) -> list[Row]:
    rows: list[Row] = []
    lanes.run(checks, SUBJECT, rows.append, deadline=time.monotonic() + seconds)
    return rows


def fine(subject: Subject) -> Iterator[Row]:
    yield ok("fine", "all well")


def hangs(subject: Subject) -> Iterator[Row]:
    yield ok("first", "came in time")
    time.sleep(600)


def test_rows_come_with_their_place_in_the_table() -> None:
    def two(subject: Subject) -> Iterator[Row]:
        yield ok("one", "1")
        yield warn("two", "2", "Mend it.")

    rows = run(check(two), check(fine, lane="b"))
    assert sorted(rows, key=lambda row: row.position) == [
        Row("one", "OK", "1", position=0),
        Row("two", "WARN", "2", "Mend it.", position=1),
        Row("fine", "OK", "all well", position=100),
    ]


def test_a_check_without_an_answer_for_this_machine_gives_no_row() -> None:
    def silent(subject: Subject) -> Iterator[Row]:
        yield from ()

    assert run(check(silent)) == []


def test_what_a_check_raises_is_a_row_not_checked() -> None:
    def raises(subject: Subject) -> Iterator[Row]:
        yield ok("before", "x")
        raise RuntimeError("the disk is\nupside down")

    before, row = run(check(raises))
    assert before.state == OK
    assert row[:4] == ("it", NOT_CHECKED, "the disk is upside down", "Do this instead.")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGXCPU])
def test_a_check_that_crashes_is_not_checked_and_the_others_go_on(signum: signal.Signals) -> None:
    def crashes(subject: Subject) -> Iterator[Row]:
        yield from ()
        os.kill(os.getpid(), signum)

    rows = run(check(crashes), check(fine))
    assert [(row.check, row.state) for row in rows] == [("it", NOT_CHECKED), ("fine", OK)]
    assert rows[0].found == f"the check broke off (wait status {int(signum)})"


def test_a_check_that_hangs_costs_its_own_row_only() -> None:
    rows = run(check(hangs, limit_s=0.3), check(fine), check(fine, lane="b"))
    assert sorted((row.check, row.state) for row in rows) == [
        ("fine", OK),
        ("fine", OK),
        ("first", OK),
        ("it", NOT_CHECKED),
    ]


def test_nothing_runs_past_the_deadline() -> None:
    rows = run(check(hangs, limit_s=600), check(hangs, name="that"), seconds=0.3)
    assert [row[:2] for row in rows if row.state == NOT_CHECKED] == [
        ("it", NOT_CHECKED),
        ("that", NOT_CHECKED),
    ]


def test_a_check_that_comes_after_the_deadline_is_not_checked() -> None:
    row = run(check(hangs, limit_s=600), seconds=0.0)[-1]
    assert (row.check, row.state) == ("it", NOT_CHECKED)


def test_what_a_hanging_check_started_is_ended_even_a_daemon(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def starts(subject: Subject) -> Iterator[Row]:
        yield from ()
        os.environ.update(subject.environ)
        os.system(f"sleep 600 & echo $! >> {pids}; setsid sleep 600 & echo $! >> {pids}")
        wait_until(lambda: len(pids.read_text().split()) == 2)
        time.sleep(600)

    def started() -> list[int]:
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    run(check(starts, limit_s=2.0))
    assert len(started()) == 2
    wait_until(lambda: all(processes.start_ticks(pid) is None for pid in started()))


def test_ctrl_c_lets_what_a_check_started_end_by_itself(tmp_path: Path) -> None:
    # srun gives its nodes back on TERM; after KILL they stay allocated
    script = (
        f"trap 'echo gave back > {tmp_path}/end; exit' TERM; echo $$; while :; do sleep 0.1; done"
    )

    def starts(subject: Subject) -> Iterator[Row]:
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as started:
            (tmp_path / "made").touch()
            try:
                yield ok("started", str(int(started.stdout.readline())))
                time.sleep(600)
            finally:
                (tmp_path / "made").unlink()

    def ctrl_c(row: Row) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deadline = time.monotonic() + 20.0
        lanes.run([check(starts)], SUBJECT, ctrl_c, deadline=deadline)
    assert (tmp_path / "end").read_text() == "gave back\n"
    assert not (tmp_path / "made").exists()


def test_what_does_not_end_by_itself_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "_TERM_SECONDS", 0.3)

    def stays(subject: Subject) -> Iterator[Row]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        yield ok("pid", str(os.getpid()))
        time.sleep(600)

    pid, row = run(check(stays, limit_s=0.5))
    assert row.state == NOT_CHECKED
    assert processes.start_ticks(int(pid.found)) is None


def test_an_answer_that_came_while_another_check_was_ended_is_kept(tmp_path: Path) -> None:
    ending, answered = tmp_path / "ending", tmp_path / "answered"

    def ends_slowly(subject: Subject) -> Iterator[Row]:
        yield from ()
        signal.signal(signal.SIGTERM, lambda *_: ending.touch())
        wait_until(answered.exists)
        time.sleep(0.2)

    def slow(subject: Subject) -> Iterator[Row]:
        wait_until(ending.exists)
        yield ok("slow", "at last")
        answered.touch()

    rows = run(check(ends_slowly, limit_s=0.5), check(slow, lane="b", limit_s=0.5))
    assert [row for row in rows if row.check == "slow"] == [
        ok("slow", "at last")._replace(position=100)
    ]


def test_what_a_check_prints_reaches_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    def prints(subject: Subject) -> Iterator[Row]:
        os.system("echo from a library; echo and an error >&2")
        yield ok("quiet", "x")

    assert [row.check for row in run(check(prints))] == ["quiet"]
    assert capfd.readouterr() == ("", "")


def test_a_row_survives_its_line() -> None:
    row = not_checked("naïve", "ümlaut → arrow", "Do.")._replace(node="n1", position=7)
    assert Row.from_line(row.to_line()) == row


def test_a_long_row_is_cut_to_what_slurm_passes_on_whole() -> None:
    line = Row("check", "FAIL", "\u2192" * 5000, "\u2192" * 5000, "node").to_line()
    assert len(line.encode()) < MOST_BYTES
    assert Row.from_line(line).check == "check"


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", '["a", "GOOD", "", "", "", 0]', '["a", "OK", 1, "", "", 0]']
)
def test_what_is_no_row_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Row.from_line(line)
