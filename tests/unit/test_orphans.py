"""What killed launchers leave on a node is ended by the next one; what lives is left alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcprof.launch import processes
from hpcprof.launch.orphans import end_orphans
from tests.unit import launching

pytestmark = pytest.mark.unit

# a launcher: makes its state folder, starts an "agent of nsys" and, as told, a "training"
_LAUNCHER = """
import subprocess, sys, time
from pathlib import Path
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.launch.attempt import MARK_VARIABLE, Attempt
from hpcprof.launch.state_folder import make_state_folder

scratch, trains = Path(sys.argv[1]), sys.argv[2] == "trains"
identity = RankEnv(rank=3, local_rank=1, world_size=4, node="n", job_id="77", slurm_step="0")
attempt = Attempt(make_state_folder(scratch, identity) / "attempt-1")
mark = {MARK_VARIABLE: str(attempt.folder)}
agent = subprocess.Popen(["/bin/sleep", "300"], env=mark, start_new_session=True)
training = subprocess.Popen(["/bin/sleep", "300"], env={}, start_new_session=True)
(attempt.folder / f"started.{training.pid}.{training.pid}").write_text("")
if not trains:
    training.kill()
    training.wait()
print(agent.pid, training.pid, flush=True)
time.sleep(300)
"""


class _Launcher:
    def __init__(self, scratch: Path, training: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(scratch), training],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.agent, self.training = (int(pid) for pid in self.process.stdout.readline().split())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        processes.end({self.agent, self.training}, grace_seconds=0.0)


@pytest.fixture
def launch(tmp_path: Path):
    started: list[_Launcher] = []

    def start(training: str) -> _Launcher:
        started.append(_Launcher(tmp_path, training))
        return started[-1]

    yield start
    for launcher in started:
        launcher.end()


def _is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while processes.start_ticks(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes.start_ticks(pid) is None


def test_the_agent_of_a_killed_launcher_is_ended_and_its_folder_removed(tmp_path, launch):
    killed = launch("has ended")
    (folder,) = tmp_path.iterdir()
    killed.kill()
    assert end_orphans(tmp_path) == [
        f"ended 1 process of nsys, left by {folder.name}, a killed launcher"
    ]
    assert _is_gone(killed.agent)
    assert not folder.exists()
    assert end_orphans(tmp_path) == []


def test_what_a_living_launcher_has_started_is_left_alone(tmp_path, launch):
    living = launch("has ended")
    (folder,) = tmp_path.iterdir()
    assert end_orphans(tmp_path) == []
    assert processes.start_ticks(living.agent) is not None
    assert folder.is_dir()


def test_a_recording_whose_training_still_runs_is_left_alone(tmp_path, launch):
    killed = launch("trains")
    (folder,) = tmp_path.iterdir()
    killed.kill()
    assert end_orphans(tmp_path) == []
    assert processes.start_ticks(killed.agent) is not None
    assert folder.is_dir()


def test_a_scratch_folder_that_cannot_be_read_is_no_reason_not_to_start(tmp_path):
    assert end_orphans(tmp_path / "missing") == []


def test_a_state_folder_that_somebody_removes_does_not_change_the_exit_code(tmp_path):
    report = 'echo report > "$report"; "$@"'
    program = launching.fake_nsys(tmp_path / "fake", report)
    launching.write_run_json(tmp_path / "run", nsys_path=str(program))
    record = tmp_path / "run/ranks/00003/manifest.json"
    shell = f"until grep -q 'fell_back\": *false' {record}; do sleep 0.05; done; "
    shell += 'rm -r "$HPCPROF_STATE_FOLDER"; exit 0'
    environ = launching.environ(tmp_path)
    done = launching.launch(tmp_path / "run", ["/bin/sh", "-c", shell], env=environ)

    assert done.returncode == 0
    written = launching.manifest(tmp_path / "run")
    assert written["exit_code"] == 0
    assert any("known from nsys, which returned 0: " in text for text in written["warnings"])
