"""The watchdog: it writes down what hangs, says it once, and changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcprof.artifacts import rank_env, rank_state
from tests.unit import annotated, launching

pytestmark = pytest.mark.unit


def watched(seconds: float | str) -> dict[str, str]:
    """Environment of a training whose hangs are looked for."""
    return {rank_env.HANG_AFTER: str(seconds)}


def test_a_hang_after_a_step_is_written_down_and_changes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = """
lock = threading.Lock()
lock.acquire()
def loads_the_next_batch():
    lock.acquire()
for _ in range(42):
    with annotate.step():
        pass
thread = threading.Thread(target=loads_the_next_batch)
def waits_for_the_batch():
    thread.start()
    thread.join(3)
waits_for_the_batch()
lock.release()
sys.exit(7)
"""
    before = time.time_ns()
    done = annotated.run(code, tmp_path, state, **watched(0.5))

    assert done.returncode == 7
    stacks = tmp_path / "stacks.txt"
    happened = "no step for [01] s after step 41; "
    said = f"what every thread does is in {re.escape(str(stacks))}\n"
    assert re.fullmatch(f"hpcprof: rank 3: {happened}{said}", done.stderr)
    text = stacks.read_text()
    assert " in loads_the_next_batch\n" in text
    assert " in waits_for_the_batch\n" in text
    pid = annotated.header_pid(tmp_path)
    assert re.match(rf"=== 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ pid {pid}: {happened}", text)
    hang = json.loads(rank_state.find(state, rank_state.HANG) or "")
    assert hang["step"] == 41
    assert hang["seconds"] >= 0.5
    assert before < hang["at"]["realtime_ns"] < time.time_ns()
    since = hang["at"]["monotonic_ns"] - annotated.steps(tmp_path)[41].end_ns
    assert since >= 0.5e9
    assert stacks.stat().st_mode & 0o777 == 0o600


FOUND = """
from hpcprof.annotate import automatic
os.environ["HPCPROF_OWNER_PID"] = str(os.getpid())
for _ in range(42):
    step = automatic.AutomaticStep(automatic.marking_session(), annotate.now_ns())
    step.end(annotate.now_ns())
"""


def test_work_after_steps_that_hooks_found_is_no_hang(tmp_path: Path) -> None:
    code = FOUND + "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\n"
    done = annotated.run(code, tmp_path, tmp_path / "state", **watched(0.5))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(annotated.steps(tmp_path)) == 42


def test_a_hang_after_steps_that_hooks_found_is_one(tmp_path: Path) -> None:
    code = FOUND + "time.sleep(1.5)\n"
    done = annotated.run(code, tmp_path, tmp_path / "state", **watched(0.5))
    assert done.returncode == 0
    assert re.match("hpcprof: rank 3: no step for [01] s after step 41; ", done.stderr)


def test_a_run_folder_that_stalls_does_not_stop_the_training(tmp_path: Path) -> None:
    """A pipe that nobody empties stands for a file system that hangs in the middle of a write."""
    stacks = tmp_path / "stacks.txt"
    os.mkfifo(stacks)
    reader = os.open(stacks, os.O_RDONLY | os.O_NONBLOCK)
    room = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    code = """
import signal
signal.alarm(15)  # ends a training that stands still
def far_down(depth):
    if depth:
        return far_down(depth - 1)
    time.sleep(2)
    with annotate.step():
        pass
far_down(150)
print("trained")
sys.exit(7)
"""
    done = annotated.run(
        "annotate.is_active()\n" + code, tmp_path, tmp_path / "state", **watched(0.5)
    )

    assert (done.returncode, done.stdout) == (7, "trained\n")
    assert list(annotated.steps(tmp_path)) == [0]
    text = os.read(reader, 2 * room)
    assert len(text) == room  # the watchdog was stopped by the full pipe
    assert b" in far_down\n" in text
    os.close(reader)


def test_a_hang_before_the_first_step_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    done = annotated.run("annotate.is_active()\ntime.sleep(2)", tmp_path, state, **watched(0.5))

    assert done.returncode == 0
    assert re.match("hpcprof: rank 3: no step yet, [01] s after the start; ", done.stderr)
    assert json.loads(rank_state.find(state, rank_state.HANG) or "")["step"] == -1


def test_a_training_that_makes_steps_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = """
for _ in range(100):
    with annotate.step():
        time.sleep(0.02)
"""
    done = annotated.run(code, tmp_path, state, **watched(1.5))

    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "stacks.txt").exists()
    assert rank_state.find(state, rank_state.HANG) is None


def test_a_training_that_hangs_again_and_again_is_told_of_three_times(tmp_path: Path) -> None:
    code = """
for _ in range(5):
    with annotate.step():
        time.sleep(1)
"""
    done = annotated.run(code, tmp_path, **watched(0.3))

    assert done.returncode == 0
    headers = [x for x in (tmp_path / "stacks.txt").read_text().splitlines() if x[:3] == "==="]
    assert len(headers) == 3
    assert ["no step yet" in headers[0], "after step 0" in headers[1]] == [True, True]
    assert done.stderr.count("\n") == 3


def test_a_process_that_was_suspended_has_not_hung(tmp_path: Path) -> None:
    """Slurm suspends jobs by SIGSTOP; the clock goes on meanwhile."""
    code = """
while not os.path.exists(os.environ["STOP_FILE"]):
    with annotate.step():
        for _ in range(40):  # most of it is still to come when the process goes on
            time.sleep(0.01)
"""
    end = tmp_path / "end"
    env = annotated.environ(tmp_path, None, STOP_FILE=str(end), **watched(1.5))
    argv = [sys.executable, "-c", annotated.PREAMBLE + code]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as training:
        launching.wait_until((tmp_path / "spans.bin").exists)
        launching.wait_until(lambda: len(annotated.steps(tmp_path)) >= 2)
        os.kill(training.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(training.pid, signal.SIGCONT)
        after = len(annotated.steps(tmp_path))
        launching.wait_until(lambda: len(annotated.steps(tmp_path)) > after)
        end.write_text("")
        _, errors = training.communicate(timeout=30)

    assert (training.returncode, errors) == (0, "")
    assert not (tmp_path / "stacks.txt").exists()


def test_stacks_that_cannot_be_written_end_the_watchdog_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "stacks.txt").mkdir()
    code = """
with annotate.step():
    time.sleep(2)
print([thread.name for thread in threading.enumerate()])
"""
    done = annotated.run(code, tmp_path, state, **watched(0.2))

    assert (done.stdout, done.stderr) == ("['MainThread']\n", "")
    assert annotated.notes(state) == [
        f"the watchdog ended: Is a directory ({tmp_path / 'stacks.txt'})"
    ]


def test_a_forked_child_has_no_watchdog(tmp_path: Path) -> None:
    code = """
with annotate.step():
    pass
if os.fork() == 0:
    annotate.is_active()
    print([thread.name for thread in threading.enumerate()], flush=True)
    time.sleep(1.0)
    os._exit(0)
for _ in range(130):
    with annotate.step():
        time.sleep(0.01)
os.wait()
"""
    done = annotated.run(code, tmp_path, **watched(0.8))

    assert (done.stdout, done.stderr) == ("['MainThread']\n", "")
    assert not (tmp_path / "stacks.txt").exists()


@pytest.mark.parametrize(("seconds", "threads"), [("600", 2), ("0", 1), ("", 1), ("soon", 1)])
def test_it_is_there_only_where_it_was_asked_for(
    tmp_path: Path, seconds: str, threads: int
) -> None:
    state = tmp_path / "state"
    code = "annotate.is_active(); print(len(threading.enumerate()))"
    done = annotated.run(code, tmp_path, state, **watched(seconds))

    assert (done.stdout, done.stderr) == (f"{threads}\n", "")
    expected = ["there is no watchdog: HPCPROF_HANG_AFTER_S='soon' is not a number"]
    assert annotated.notes(state) == (expected if seconds == "soon" else [])


def test_a_training_that_stopped_recording_is_not_watched(tmp_path: Path) -> None:
    code = "with annotate.step(): pass\nannotate.close()\ntime.sleep(0.8)"
    done = annotated.run(code, tmp_path, **watched(0.2))

    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "stacks.txt").exists()
