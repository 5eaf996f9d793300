"""``hpcprof launch`` with the real nsys: nothing that happens to nsys happens to the training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launched_rank import (
    AGENT,
    APPLICATION,
    COMMAND_LINE,
    ENDS_OF_APPLICATION,
    HELPER,
    JOB,
    SESSION,
    Rank,
    application,
    ranges,
    wait_for_line,
)
from tests.setup import paths as tools_of_tests
from tests.unit import launching

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _training_environment(horovod_python: Path) -> Path:
    """The applications use its nvtx."""
    return horovod_python


def test_the_report_is_written_and_the_exit_code_kept(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 1.0))

    assert rank.end() == ENDS_OF_APPLICATION
    written = launching.manifest(tmp_path / "run")
    report = tmp_path / "run/ranks/00003/rank.nsys-rep"
    assert (written["state"], written["exit_code"]) == ("OK", 7)
    assert written["state_reason"] == f"nsys report, {report.stat().st_size} bytes"
    assert written["profiler"]["returncode"] == 7
    assert marks.read_text() == f"start {written['pid']}\nend\n"
    assert 30 <= ranges(nsys, report) <= 50
    assert list((scratch / f"hpcprof-{os.getuid()}").glob(f"{JOB}.*")) == []


@pytest.mark.parametrize(
    ("end", "code", "returned"),
    [("os._exit(0)", 0, 0), ("os.abort()", 134, -6), ("os.kill(os.getpid(), 9)", 137, -9)],
)
def test_the_fate_of_the_application_is_the_launchers(
    nsys: Path, scratch: Path, tmp_path: Path, end: str, code: int, returned: int
) -> None:
    command = [str(tools_of_tests.train_python()), "-c", f"import os; {end}"]
    rank = Rank(nsys, scratch, tmp_path / "run", command)

    assert rank.end()[0] == returned
    assert launching.manifest(tmp_path / "run")["exit_code"] == code


def test_usr1_reaches_the_application_and_the_report_survives(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 2.0))
    wait_for_line(marks, "start")
    rank.launcher.send_signal(signal.SIGUSR1)
    wait_for_line(marks, "signal 10")
    # without B: Slurm's --signal goes to every process of the step, nsys and agent included
    for pid in (*rank.nsys_pids(), int(marks.read_text().split()[1])):
        os.kill(pid, signal.SIGUSR2)

    assert rank.end()[0] == 7
    assert marks.read_text().splitlines()[1:] == ["signal 10", "signal 12", "end"]
    assert launching.manifest(tmp_path / "run")["state"] == "OK"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_term_reaches_the_application_once_and_the_report_is_written(
    nsys: Path, scratch: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 3.0, signum))
    wait_for_line(marks, "start")
    rank.launcher.send_signal(signum)

    assert rank.end()[0] == 7  # the application handled it, and cleaned up for as long as it likes
    assert marks.read_text().splitlines()[1:] == [f"signal {int(signum)}", "end"]
    written = launching.manifest(tmp_path / "run")
    assert written["state"] == "OK"
    assert written["warnings"] == ["nsys ended before the training; it went on unrecorded"]


def test_term_to_the_whole_step_does_not_cost_the_report(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """A second TERM would end nsys before its report is written; its agent is left out here."""
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 3.0, signal.SIGTERM))
    wait_for_line(marks, "start")
    agent = rank.pid(AGENT)
    application_pid = int(marks.read_text().split()[1])
    for pid in (*(set(rank.nsys_pids()) - {agent}), application_pid, rank.launcher.pid):
        os.kill(pid, signal.SIGTERM)

    assert rank.end()[0] == 7
    assert launching.manifest(tmp_path / "run")["state"] == "OK"


@pytest.mark.parametrize(
    ("victim", "signum", "returncode"),
    [(AGENT, signal.SIGKILL, 0), (AGENT, signal.SIGTERM, 0), (COMMAND_LINE, signal.SIGKILL, 137)],
)
def test_the_training_outlives_nsys(
    nsys: Path, scratch: Path, tmp_path: Path, victim: str, signum: int, returncode: int
) -> None:
    marks = tmp_path / "marks"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 3.0))
    wait_for_line(marks, "start")
    os.kill(rank.pid(victim), signum)

    assert rank.end() == ENDS_OF_APPLICATION
    assert marks.read_text().splitlines()[1:] == ["end"]
    written = launching.manifest(tmp_path / "run")
    assert (written["exit_code"], written["profiler"]["returncode"]) == (7, returncode)
    assert written["state"] == "LOST"
    assert "nsys ended before the training; it went on unrecorded" in written["warnings"]


def test_an_nsys_whose_helper_was_killed_is_made_to_finish(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    """It would wait for ever; asked by TERM it writes its report."""
    marks = tmp_path / "marks"
    patch = "from hpcprof.launch import nsys_watch; nsys_watch.STALL_SECONDS = 3"
    rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 2.0), patch)
    wait_for_line(marks, "start")
    os.kill(rank.pid(HELPER), signal.SIGKILL)

    assert rank.end()[0] == 7
    written = launching.manifest(tmp_path / "run")
    assert written["state"] == "OK"
    assert written["warnings"] == ["nsys did not end by itself after the application"]


def test_four_ranks_start_at_the_same_moment_and_none_is_lost(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    command = ["/bin/sh", "-c", 'exec "$0" "$@" ' + str(tmp_path) + "/marks$HPCPROF_RANK 1.0"]
    command += [str(tools_of_tests.train_python()), "-c", APPLICATION]
    argv = [sys.executable, "-m", "hpcprof", "launch", "--ranks", "4", "--profiler", "nsys"]
    environ = launching.environ(scratch, PATH=f"{nsys.parent}:{os.environ['PATH']}")
    argv += ["--run-dir", str(tmp_path / "run"), "--", *command]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=180)

    assert done.returncode == 7, done.stderr
    for rank in range(4):
        written = launching.manifest(tmp_path / "run", rank)
        assert (written["state"], written["exit_code"]) == ("OK", 7), written
        assert written["profiler"]["fell_back"] is False
        assert (tmp_path / f"marks{rank}").read_text().count("start") == 1


def test_a_session_of_the_same_name_does_not_stop_the_training(
    nsys: Path, scratch: Path, tmp_path: Path
) -> None:
    shared = scratch / f"hpcprof-{os.getuid()}"
    shared.mkdir(mode=0o700)
    blocker = [str(nsys), "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    blocker += [f"--session-new={SESSION}", "-o", str(tmp_path / "blocker"), "sleep", "12"]
    with subprocess.Popen(blocker, env={**os.environ, "TMPDIR": str(shared)}) as other:
        launching.wait_until(lambda: SESSION in sessions(nsys, shared))
        marks = tmp_path / "marks"
        rank = Rank(nsys, scratch, tmp_path / "run", application(marks, 0.5))
        assert rank.end()[0] == 7
        assert other.poll() is None
        other.terminate()
    assert marks.read_text().count("start") == 1
    written = launching.manifest(tmp_path / "run")
    assert (written["state"], written["profiler"]["session"]) == ("OK", f"{SESSION}-2")


def sessions(nsys: Path, tmpdir: Path) -> str:
    argv = [str(nsys), "sessions", "list"]
    env = {**os.environ, "TMPDIR": str(tmpdir)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_run_folder_costs_the_report_only(nsys: Path, scratch: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "small"
    run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", run_dir], check=True)
    try:
        marks = tmp_path / "marks"
        rank = Rank(nsys, scratch, run_dir, application(marks, 1.0))
        assert rank.end()[0] == 7
        written = launching.manifest(run_dir)
        assert (written["exit_code"], written["state"]) == (7, "LOST")
        assert marks.read_text().endswith("end\n")
    finally:
        subprocess.run(["umount", run_dir], check=True)


def test_python_3_8_and_annotate_work_under_nsys(nsys: Path, scratch: Path, tmp_path: Path) -> None:
    python = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))
    if not python:
        pytest.skip("no Python 3.8 on this machine")
    code = "import hpcprof.annotate, os, json; print(json.dumps(os.environ['HPCPROF_NVTX']))"
    rank = Rank(nsys, scratch, tmp_path / "run", [str(python[0]), "-c", code])

    assert json.loads(rank.end()[1]) == "1"
