"""Job scripts and signals: what they start, what they must not change."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.slurm_stubs import Stubs, install_stubs, launched, make_spec, script_for

pytestmark = pytest.mark.unit


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return install_stubs(tmp_path)


@contextlib.contextmanager
def running(stubs: Stubs, script: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """The job, from the moment its training has been started."""
    path = stubs.bin.parent / "slurm_script"
    path.write_text(script)
    with subprocess.Popen(
        ["bash", str(path)],
        env=stubs.environ(SLURM_JOB_ID="1", **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        wait_until(lambda: bool(stubs.calls()))
        yield job


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("profiler", ["auto", "none"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_to_the_batch_shell_does_not_end_the_job(
    stubs: Stubs, number: signal.Signals, profiler: str
) -> None:
    script = script_for(stubs, make_spec(profile={"profiler": profiler}))
    with running(stubs, script, STUB_SLEEP="0.6", STUB_EXIT="9") as job:
        job.send_signal(number)
        time.sleep(0.1)
        job.send_signal(number)
        assert job.wait(30) == 9
    assert len(stubs.flush_calls()) == (number == signal.SIGUSR1 and profiler == "auto")


def test_usr1_ends_the_recordings_once_with_one_task_per_node(stubs: Stubs) -> None:
    spec = make_spec(nodes=2, ranks_per_node=3)
    stub = {"STUB_SLEEP": "2", "STUB_EXIT": "7", "STUB_AGENT_SLEEP": "60"}
    with running(stubs, script_for(stubs, spec), **stub) as job:
        wait_until(lambda: bool(stubs.agent_calls()))
        job.send_signal(signal.SIGUSR1)
        wait_until(lambda: bool(stubs.flush_calls()))
        job.send_signal(signal.SIGUSR1)
        printed, _ = job.communicate(timeout=30)
    assert (job.returncode, printed) == (7, "flush says hello\n")
    (call,) = stubs.flush_calls()
    (agent,) = stubs.agent_calls()
    shared = [word for word in agent["argv"] if word.startswith("--") and "-name" not in word]
    assert {"--overlap", "--gres=none", "--nodes=2", "--ntasks=2", "--mem=0"} <= set(shared)
    assert [*shared, "--job-name=hpcprof-flush", "--mpi=none"] == call["argv"][:-5]
    assert call["argv"][-5:] == [*launched(stubs)[:4], "flush"]
    assert call["env"]["HPCPROF_RUN_DIR"] == stubs.calls()[0]["env"]["HPCPROF_RUN_DIR"]


def test_a_flush_that_hangs_keeps_no_job_that_ends(stubs: Stubs) -> None:
    script = script_for(stubs, make_spec(profile={"agent": "none"}))
    with running(stubs, script, STUB_SLEEP="1", STUB_EXIT="3", STUB_FLUSH_SLEEP="40") as job:
        job.send_signal(signal.SIGUSR1)
        wait_until(lambda: bool(stubs.flush_calls()))
        assert job.wait(30) == 3


def test_signals_after_the_training_change_no_exit_code(stubs: Stubs) -> None:
    # the flush still runs when the training has ended, and is waited for
    environ = {"STUB_SLEEP": "1", "STUB_EXIT": "9", "STUB_FLUSH_SLEEP": "40"}
    script = script_for(stubs, make_spec(profile={"agent": "none"}))
    with running(stubs, script, **environ) as job:
        job.send_signal(signal.SIGUSR1)
        wait_until(lambda: bool(stubs.flush_calls()))
        training = children(job.pid)[0]
        wait_until(lambda: training not in children(job.pid))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            job.send_signal(number)
            time.sleep(0.1)
        assert job.poll() is None
        assert job.wait(30) == 9
    assert len(stubs.flush_calls()) == 1


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_usr1_starts_nothing_where_nothing_is_recorded(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with running(stubs, script_for(stubs), STUB_SLEEP="0.5") as job:
        job.send_signal(signal.SIGUSR1)
        assert job.wait(30) == 0
    assert stubs.flush_calls() == []
