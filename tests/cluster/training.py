"""A real training on the test cluster as a user would submit it, for tests of the whole path."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpcprof.artifacts import span_format
from hpcprof.artifacts.paths import ArtifactPaths
from tests.cluster.cluster import FINAL_STATES, Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
RANKS = 4
# four single-threaded ranks on two cores: a step of this size takes 250 ms and more
WORKLOAD = ["image-cnn", "--image-size=128", "--width=24", "--batch=8", "--files=64", "--pin"]
STEPS = 70
# of a core, for each of four ranks: what they leave is for Slurm, nsys and the tests
CORE_SHARE = 0.42
UNMODIFIED = Path(__file__).with_name("unmodified_training.py")
JOB_TIMEOUT_S = 400
# each question to Slurm takes a core for 20 ms: asked often, it would be a fault of its own
ASK_SLURM_S = 3.0


@dataclass(frozen=True)
class Training:
    """A submitted training; ``run_dir`` exists once the job has started.

    ``marker`` is a word of its command line, ``records`` what each step leaves in spans.bin.
    """

    cluster: Cluster
    job_id: int
    run_dir: Path
    log: Path
    collect_id: int | None
    env: dict[str, str]
    marker: str
    records: int

    def wait(self) -> str:
        """The job's final state by sacct; then waits for the collect job too."""
        state = self._wait_for(self.job_id)
        if self.collect_id is not None:
            collected = self._wait_for(self.collect_id)
            assert collected == "COMPLETED", Path(f"{self.run_dir}-collect.log").read_text()
        return state

    def _wait_for(self, job_id: int) -> str:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while (state := self.cluster.job_state(job_id)) not in FINAL_STATES:
            assert time.monotonic() < deadline, f"job {job_id} is {state}:\n{self.output()}"
            time.sleep(ASK_SLURM_S)
        return state

    def wait_for_step(self, step: int) -> None:
        """Until every rank has recorded ``step`` steps."""
        paths = ArtifactPaths(self.run_dir)
        size = self.records * step * span_format.BLOCK_BYTES
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
        next_question = 0.0
        while not condition():
            if time.monotonic() >= next_question:
                next_question = time.monotonic() + ASK_SLURM_S
                state = self.cluster.job_state(self.job_id)
                over = time.monotonic() > deadline or state in FINAL_STATES
                assert not over, f"{what} was not reached ({state}):\n{self.output()}"
            time.sleep(0.3)

    @contextlib.contextmanager
    def own_cores(self, shares: Mapping[int, float] | None = None) -> Iterator[None]:
        """Give every rank a processor of its own, from its first steps to the end of the block.

        Ranks that share a real core take it from each other: one that waits makes its neighbour
        faster, and who is faster stays so for the whole run. With a fixed share of a core each,
        ranks are as independent as on a real cluster. ``shares`` gives single ranks another one.
        """
        self.wait_for_step(1)
        with contextlib.ExitStack() as stack:
            for rank in range(RANKS):
                quota = (shares or {}).get(rank, CORE_SHARE)
                pids = [self.training_pid(rank)]
                stack.enter_context(self.cluster.slow_cpu(pids=pids, quota=quota))
            yield

    def training_pid(self, rank: int) -> int:
        """Host-side pid of the Python that trains as ``rank``."""
        pids: list[int] = []

        def found() -> bool:
            pids[:] = [
                pid
                for pid in self.cluster.find_rank_pids(self.job_id, rank, command=self.marker)
                # a launcher has the training's command line behind its own
                if self.marker in _argv(pid)[1:4]
            ]
            return bool(pids)

        self.wait_until(found, f"a process of rank {rank}")
        return pids[-1]

    def output(self) -> str:
        """What the job printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else "(no log)"

    def record(self) -> dict[str, Any]:
        """findings.json as the collect job wrote it."""
        value: dict[str, Any] = json.loads(ArtifactPaths(self.run_dir).findings.read_text())
        return value

    def collect(self) -> dict[str, Any]:
        """Run collect by hand on the login node; returns what it prints with --json."""
        return collect(self.cluster, self.run_dir, self.env)


def collect(cluster: Cluster, run_dir: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """What hpcprof collect, run on the login node, prints of a run folder with --json."""
    argv = [sys.executable, "-m", "hpcprof", "collect", run_dir, "--json"]
    value: dict[str, Any] = json.loads(cluster.run(*argv, env=env).stdout)
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
    options: Sequence[str] = (),
    nodes: int = 2,
    env: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    unmodified: bool = False,
) -> Training:
    """Write a job spec into ``folder`` and submit it as ``hpcprof submit`` does.

    The workload of hpcprof, which marks its steps, or a training that knows nothing of hpcprof.
    ``options`` are more of the workload's own, ``spec`` more of the job spec's fields, ``env`` of
    the environment at submission. ``nsys`` is put on the job's PATH; without it the job finds none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    command = [str(train_python), "-m", "hpcprof", "workload", *WORKLOAD]
    command += [f"--strategy={strategy}", f"--steps={steps}", f"--data-dir={data}", *options]
    if unmodified:
        command = [str(train_python), str(UNMODIFIED), str(data), str(steps)]
    fields = {
        **{"schema": 1, "name": "cnn", "strategy": strategy, "site": "test-cluster"},
        **{"nodes": nodes, "ranks_per_node": RANKS // nodes, "gpus_per_node": RANKS // nodes},
        **{"time": "00:10:00", "data_dir": str(data)},
        **{"env": {"LD_PRELOAD": str(_quiet_horovod(cluster))}},
        **{"command": command, "output_dir": str(folder / "runs"), "collect": collect},
        **(spec or {}),
    }
    (folder / "hpcprof.yaml").write_text(yaml.safe_dump(fields))
    environ = {"PATH": cluster.env["PATH"], "PYTHONPATH": str(REPOSITORY), **(env or {})}
    if nsys is not None:
        environ["PATH"] = f"{nsys.parent}:{environ['PATH']}"
    argv = [sys.executable, "-m", "hpcprof", "submit", folder / "hpcprof.yaml"]
    done = cluster.run(*argv, env=environ)
    # a marked step leaves its own record and five phases, another one input and compute
    seen = (str(UNMODIFIED), 3) if unmodified else ("workload", 6)
    return _parse(cluster, done.stdout, environ, seen)


def _quiet_horovod(cluster: Cluster) -> Path:
    """A library that lets waiting ranks sleep, see quiet_horovod.c."""
    library = cluster.shared / "quiet_horovod.so"
    source = Path(__file__).with_name("quiet_horovod.c")
    cluster.run("cc", "-shared", "-fPIC", "-O2", "-o", library, source)
    return library


def _parse(cluster: Cluster, printed: str, env: dict[str, str], seen: tuple[str, int]) -> Training:
    lines = {line[:12].strip(): line[12:].strip() for line in printed.splitlines()}
    analysis = lines.get("analysis")
    return Training(
        cluster=cluster,
        job_id=int(lines["job"]),
        run_dir=Path(lines["run folder"]),
        log=Path(lines["log"]),
        collect_id=int(analysis.split()[1].rstrip(",")) if analysis else None,
        env=env,
        marker=seen[0],
        records=seen[1],
    )


def _argv(pid: int) -> list[str]:
    """Command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
