"""A real training on the test cluster as a user would submit it, for tests of the whole path."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpcprof.artifacts import span_format
from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster.cluster import Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
RANKS = 4
# four single-threaded ranks on two cores: a step of this size takes 250 ms and more
WORKLOAD = ["image-cnn", "--image-size=128", "--width=24", "--batch=8", "--files=64", "--pin"]
STEPS = 70
JOB_TIMEOUT_S = 400


@dataclass(frozen=True)
class Training:
    """A submitted training; ``run_dir`` exists once the job has started."""

    cluster: Cluster
    job_id: int
    run_dir: Path
    log: Path
    collect_id: int | None
    env: dict[str, str]

    def wait(self) -> str:
        """The job's final state by sacct; then waits for the collect job too."""
        state = self.cluster.wait(self.job_id, JOB_TIMEOUT_S)
        if self.collect_id is not None:
            collected = self.cluster.wait(self.collect_id, JOB_TIMEOUT_S)
            assert collected == "COMPLETED", Path(f"{self.run_dir}-collect.log").read_text()
        return state

    def wait_for_step(self, step: int) -> None:
        """Until every rank has recorded ``step`` steps."""
        paths = ArtifactPaths(self.run_dir)
        # a step leaves at least its own record and five phases
        size = 6 * step * span_format.BLOCK_BYTES
        self.wait_until(
            lambda: (
                len(paths.rank_ids()) == RANKS
                and all(_size(paths.spans(rank)) >= size for rank in paths.rank_ids())
            ),
            f"step {step} on all ranks",
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll ``condition``; fails with the job's log when the job ends before."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not condition():
            state = self.cluster.job_state(self.job_id)
            over = time.monotonic() > deadline or state in ("COMPLETED", "FAILED", "TIMEOUT")
            assert not over, f"{what} was not reached ({state}):\n{self.output()}"
            time.sleep(0.3)

    def training_pid(self, rank: int) -> int:
        """Host-side pid of the Python that trains as ``rank``."""
        pids: list[int] = []

        def found() -> bool:
            pids[:] = [
                pid
                for pid in self.cluster.find_rank_pids(self.job_id, rank, command="workload")
                if os.readlink(f"/proc/{pid}/exe").endswith(("python3", "python3.11", "python"))
                or "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            ]
            return bool(pids)

        self.wait_until(found, f"a process of rank {rank}")
        return pids[-1]  # the launcher is older than what it launched

    def output(self) -> str:
        """What the job printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else "(no log)"

    def record(self) -> dict[str, Any]:
        """findings.json as the collect job wrote it."""
        value: dict[str, Any] = json.loads(ArtifactPaths(self.run_dir).findings.read_text())
        return value

    def collect(self) -> dict[str, Any]:
        """Run collect by hand on the login node; returns what it prints with --json."""
        done = self.cluster.run(
            sys.executable, "-m", "hpcprof", "collect", self.run_dir, "--json", env=self.env
        )
        value: dict[str, Any] = json.loads(done.stdout)
        return value


def submit(
    cluster: Cluster,
    train_python: Path,
    folder: Path,
    *,
    nsys: Path | None,
    collect: bool = True,
    steps: int = STEPS,
    strategy: str = "horovod",
) -> Training:
    """Write a job spec into ``folder`` and submit it as ``hpcprof submit`` does.

    ``nsys`` is put on the job's PATH; without it the job finds none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    command = [str(train_python), "-m", "hpcprof", "workload", *WORKLOAD]
    command += [f"--strategy={strategy}", f"--steps={steps}", f"--data-dir={data}"]
    spec = {
        **{"schema": 1, "name": "cnn", "strategy": strategy, "site": "test-cluster"},
        **{"nodes": 2, "ranks_per_node": RANKS // 2, "gpus_per_node": 2, "time": "00:10:00"},
        **{"command": command, "output_dir": str(folder / "runs"), "collect": collect},
    }
    (folder / "hpcprof.yaml").write_text(yaml.safe_dump(spec))
    env = {"PATH": cluster.env["PATH"], "PYTHONPATH": str(REPOSITORY)}
    if nsys is not None:
        env["PATH"] = f"{nsys.parent}:{env['PATH']}"
    done = cluster.run(sys.executable, "-m", "hpcprof", "submit", folder / "hpcprof.yaml", env=env)
    return _parse(cluster, done.stdout, env)


def _parse(cluster: Cluster, printed: str, env: dict[str, str]) -> Training:
    lines = {line[:12].strip(): line[12:].strip() for line in printed.splitlines()}
    analysis = lines.get("analysis")
    return Training(
        cluster=cluster,
        job_id=int(lines["job"]),
        run_dir=Path(lines["run folder"]),
        log=Path(lines["log"]),
        collect_id=int(analysis.split()[1].rstrip(",")) if analysis else None,
        env=env,
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
