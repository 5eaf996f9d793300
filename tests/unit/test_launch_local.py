"""``launch --ranks N``: several ranks on this machine, without Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.errors import InputError
from hpcprof.launch import local, processes
from tests.unit import launching

pytestmark = pytest.mark.unit

SHOW = (
    "import json, os; print(json.dumps({"
    "'rank': os.environ['HPCPROF_RANK'], 'tf': os.environ.get('TF_CONFIG'),"
    "'launch': [n for n in os.environ if n.startswith('HPCPROF_LAUNCH')]}))"
)


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed launcher leaves its state; not on this machine's /tmp."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def run(tmp_path: Path, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcprof", "launch", *options, "--profiler", "none"]
    env = launching.environ(tmp_path)  # inside an allocation: every rank would be Slurm's task 3
    return subprocess.run(
        [*argv, "--", *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=90
    )


def run_folder(done: subprocess.CompletedProcess[str]) -> Path:
    match = re.search(r"^run folder: (.*)$", done.stdout, re.MULTILINE)
    assert match is not None, done.stdout + done.stderr
    return Path(match.group(1))


def test_every_rank_runs_and_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, [sys.executable, "-c", SHOW], "--ranks", "3", "--name", "my run")
    folder = run_folder(done)

    assert done.returncode == 0
    assert folder.parent == tmp_path / "hpcprof-runs"
    assert re.fullmatch(r"my-run-local-\d{8}T\d{6}Z-\d+", folder.name)
    record = json.loads((folder / "run.json").read_text())
    assert (record["name"], record["strategy"], record["world_size"]) == ("my-run", "custom", 3)
    assert record["launch"]["profiler"] == "none"
    assert json.loads(done.stdout.splitlines()[0]) == {"rank": "0", "tf": None, "launch": []}
    for rank in (1, 2):
        text = (folder / f"ranks/{rank:05d}/output.log").read_text()
        assert json.loads(text)["rank"] == str(rank)
    for rank in range(3):
        written = launching.manifest(folder, rank)
        assert (written["rank"], written["local_rank"], written["world_size"]) == (rank, rank, 3)
        assert written["exit_code"] == 0


def test_multiworker_ranks_get_one_cluster_with_different_ports(tmp_path: Path) -> None:
    options = ("--ranks", "2", "--strategy", "multiworker")
    folder = run_folder(done := run(tmp_path, [sys.executable, "-c", SHOW], *options))
    first = json.loads(json.loads(done.stdout.splitlines()[0])["tf"])
    second = json.loads(json.loads((folder / "ranks/00001/output.log").read_text())["tf"])

    assert first["cluster"] == second["cluster"]
    assert (first["task"], second["task"]) == (
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    )
    workers = first["cluster"]["worker"]
    assert len(set(workers)) == 2
    assert all(worker.startswith("127.0.0.1:") for worker in workers)


def test_a_failed_rank_ends_the_others_and_shows_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    script = "test $HPCPROF_RANK = 1 && { seq 30; exit 9; }; exec sleep 60"
    folder, code = local.run_local(
        ["/bin/sh", "-c", script], ranks=3, run_dir=tmp_path / "run", settings={"profiler": "none"}
    )
    shown = capfd.readouterr().err

    assert (folder, code) == (tmp_path / "run", 9)
    assert "rank 1 ended with code 9; the other 2 are ended" in shown
    lines = [line for line in shown.splitlines() if line.startswith("hpcprof launch: rank 1: ")]
    assert [line.split()[-1] for line in lines] == [str(number) for number in range(11, 31)]
    assert [launching.manifest(folder, rank)["exit_code"] for rank in range(3)] == [143, 9, 143]


def test_a_rank_that_ignores_term_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    pid_file = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {pid_file}; sleep 60; sleep 60"
    script = f"if [ $HPCPROF_RANK = 0 ]; then {stubborn}; fi; sleep 0.5; exit 3"
    _, code = local.run_local(
        ["/bin/sh", "-c", script], ranks=2, run_dir=tmp_path / "run", settings={"profiler": "none"}
    )

    assert code == 3
    assert processes.start_ticks(int(pid_file.read_text())) is None


def test_interrupt_reaches_every_rank(tmp_path: Path) -> None:
    script = f": > {tmp_path}/ready$HPCPROF_RANK; exec sleep 60"
    argv = [sys.executable, "-m", "hpcprof", "launch", "--ranks", "2", "--run-dir", "run"]
    argv += ["--profiler", "none", "--", "/bin/sh", "-c", script]
    env = launching.environ(tmp_path)
    with subprocess.Popen(argv, env=env, cwd=tmp_path) as launcher:
        launching.wait_until(lambda: all((tmp_path / f"ready{r}").exists() for r in (0, 1)))
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 130

    codes = [launching.manifest(tmp_path / "run", rank)["exit_code"] for rank in (0, 1)]
    assert codes == [130, 130]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    launching.write_run_json(tmp_path / "run")
    with pytest.raises(InputError, match="holds a run already"):
        local.run_local(["true"], ranks=1, run_dir=tmp_path / "run")


def test_signals_of_a_caller_are_given_back(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    umask = os.umask(0o022)
    os.umask(umask)
    local.run_local(["true"], ranks=1, run_dir=tmp_path / "run", settings={"profiler": "none"})

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert os.umask(umask) == umask


@pytest.mark.parametrize("options", [("--ranks", "0"), ("--ranks", "x"), ()])
def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = ["true"] if options else []
    assert run(tmp_path, command, *options).returncode == 2
