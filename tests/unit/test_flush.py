"""``hpcprof flush`` and launchers that run, with a program in nsys's place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcprof.launch import flush
from tests.unit import launching

pytestmark = pytest.mark.unit

PROFILE = '"$@"; code=$?; [ -e "$report" ] || echo all > "$report"; exit $code'


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A job id that no other test uses: all of a node's processes are looked at."""
    return f"{os.getpid()}{abs(hash(tmp_path)) % 10**6}"


@contextmanager
def running(
    tmp_path: Path, job: str, rank: int, *options: str, patch: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """A rank that trains until the file ``end`` is there."""
    shell = f": > {tmp_path}/began{rank}; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done"
    command = ["/bin/sh", "-c", f"{shell}; exit 7"]
    env = launching.environ(tmp_path / "scratch", SLURM_PROCID=str(rank), SLURM_JOB_ID=job)
    argv = launching.argv(tmp_path / "run", command, *options, patch=patch)
    with subprocess.Popen(argv, env=env, text=True) as launcher:
        try:
            launching.wait_until((tmp_path / f"began{rank}").exists)
            yield launcher
            (tmp_path / "end").touch()
            assert launcher.wait(20) == 7
        finally:
            (tmp_path / "end").touch()
            launcher.send_signal(signal.SIGCONT)


def states(tmp_path: Path, rank: int) -> list[Path]:
    return list((tmp_path / "scratch").glob(f"hpcprof-*/*.1.{rank}.*"))


def run_flush(tmp_path: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcprof", "flush", *options]
    environ = launching.environ(tmp_path, **env)
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_every_rank_of_the_job_is_stopped_and_named(tmp_path: Path, job: str) -> None:
    (tmp_path / "scratch").mkdir()
    program = launching.fake_nsys(tmp_path / "fake", PROFILE)
    launching.write_run_json(tmp_path / "run", nsys_path=str(program), profile_ranks="3")
    with running(tmp_path, job, 3) as profiled, running(tmp_path, job, 1) as plain:
        # TMPDIR is not the ranks'; their processes say where their folders are
        done = run_flush(tmp_path, SLURM_JOB_ID=job)
        assert profiled.poll() is None and plain.poll() is None
        stopped = launching.manifest(tmp_path / "run", 3)  # all that stays if it is killed now

    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(done.stderr.splitlines()) == [
        "hpcprof flush: rank 1: ok: this rank is not recorded",
        "hpcprof flush: rank 3: ok: the recording is written, 7 bytes",
    ]
    assert stopped["exit_code"] is None
    assert (stopped["state"], stopped["state_reason"]) == (
        "PARTIAL",
        "stopped before the time limit",
    )
    written = launching.manifest(tmp_path / "run", 3)
    assert written["state_reason"] == "stopped before the time limit; nsys report, 7 bytes"
    assert launching.manifest(tmp_path / "run", 1)["state"] == "NOT_PROFILED"


def test_another_job_is_left_alone(tmp_path: Path, job: str) -> None:
    (tmp_path / "scratch").mkdir()
    with running(tmp_path, job, 3, "--profiler", "none"):
        done = run_flush(tmp_path / "scratch", SLURM_JOB_ID=job + "1")
        (state,) = states(tmp_path, 3)
        assert not (state / "stop").exists()

    assert done.returncode == 0
    assert done.stderr == f"hpcprof flush: no rank of job {job}1 runs under hpcprof on node1\n"


def test_a_launcher_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, job: str
) -> None:
    (tmp_path / "scratch").mkdir()
    with running(tmp_path, job, 3, "--profiler", "none") as launcher:
        launcher.send_signal(signal.SIGSTOP)
        done = run_flush(tmp_path / "scratch", "--wait", "0.5", SLURM_JOB_ID=job)
        launcher.send_signal(signal.SIGCONT)

    assert done.returncode == 0
    assert done.stderr == "hpcprof flush: rank 3: problem: no answer in 0.5 s\n"


def test_a_launcher_that_is_killed_meanwhile_has_written_nothing(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    ranks = [flush.RankState(rank, ended.pid, tmp_path / str(rank)) for rank in (1, 2)]
    for rank in ranks:
        rank.folder.mkdir()
    answers = flush.flush(ranks, "before the time limit", 5.0)

    assert next(answers) == (1, "problem: its launcher was killed")
    shutil.rmtree(ranks[1].folder)  # as every launcher does at its end
    assert list(answers) == [(2, "ok: it has ended meanwhile")]


def test_what_a_killed_job_left_behind_is_no_rank(tmp_path: Path, job: str) -> None:
    place = tmp_path / f"hpcprof-{os.getuid()}"
    # of an ended process, of one that is no launcher, of another job
    with subprocess.Popen(["true"]) as ended:
        pass
    left = (f"{job}.0.1.{ended.pid}", f"{job}.0.2.{os.getpid()}", f"{job}1.0.3.1", f"{job}.lock")
    for name in (*left, "x"):
        (place / name).mkdir(parents=True)

    assert flush.find_ranks(job, [place, tmp_path / "none"]) == []


def test_outside_a_job_there_is_nothing_to_do(tmp_path: Path) -> None:
    done = run_flush(tmp_path, SLURM_JOB_ID="")

    assert done.returncode == 0
    assert done.stderr == "hpcprof flush: not in a job: SLURM_JOB_ID is not set\n"


def test_all_places_of_state_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launching.write_run_json(tmp_path / "run", scratch="$PLACE/local")
    name = f"hpcprof-{os.getuid()}"
    monkeypatch.setenv("PLACE", "/nodes")
    found = flush.scratch_folders(str(tmp_path / "run"), {"TMPDIR": "/t"})

    assert found == [
        *(Path("/nodes/local") / name, Path("/t") / name, Path("/tmp") / name),
        Path("/dev/shm") / name,
    ]
    no_run = flush.scratch_folders(str(tmp_path / "gone"), {})
    assert no_run == [Path("/tmp") / name, Path("/dev/shm") / name]
