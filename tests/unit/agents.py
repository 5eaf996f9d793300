"""Starts node agents on this machine as srun would, each with its own node name and clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcprof.artifacts import node_records
from hpcprof.artifacts.node_time import TEST_CLOCK
from hpcprof.artifacts.paths import ArtifactPaths

REPOSITORY = Path(__file__).resolve().parents[2]
BILLION = 10**9
FAST = ("--interval-s", "0.4", "--sample-s", "0.2")
Record = dict[str, Any]


def argv(run_dir: Path, *options: str) -> list[str]:
    """Command line of an agent."""
    return [sys.executable, "-m", "hpcprof", "agent", "--run-dir", str(run_dir), *FAST, *options]


def environ(clocks: Path | None = None) -> dict[str, str]:
    """The environment without anything of a surrounding job."""
    foreign = ("HPCPROF_", "SLURM", "OMPI_", "PMI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    ours = {"PYTHONPATH": str(REPOSITORY)}
    if clocks is not None:
        ours[TEST_CLOCK] = str(clocks)
    return {**kept, **ours}


class Agents:
    """Agents 0 … n−1 on nodes node0 … of one run folder, as processes of this machine."""

    def __init__(
        self,
        run_dir: Path,
        tasks: int,
        *options: str,
        clocks: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        env = environ(clocks) | dict(environment or {})
        self.run_dir = run_dir
        self.paths = ArtifactPaths(run_dir)
        run_dir.mkdir(exist_ok=True)
        (run_dir / "run.json").write_text("{}")
        self.processes = [self._start(task, tasks, options, env) for task in range(tasks)]

    def _start(
        self, task: int, tasks: int, options: Sequence[str], env: dict[str, str]
    ) -> subprocess.Popen[str]:
        env = env | {"SLURM_PROCID": str(task), "SLURM_STEP_NUM_TASKS": str(tasks)}
        env |= {"SLURM_LOCALID": "0", "SLURMD_NODENAME": f"node{task}"}
        return subprocess.Popen(
            argv(self.run_dir, *options), env=env, stderr=subprocess.PIPE, text=True
        )

    def clock(self, task: int, kind: str) -> list[Record]:
        """Records of one kind in a node's clock.jsonl."""
        return of_kind(self.paths.node_clock(f"node{task}"), kind)

    def links(self, task: int) -> list[Record]:
        """The links that a node measured."""
        return of_kind(self.paths.node_links(f"node{task}"), node_records.LINK)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll until true. Raises AssertionError when an agent ended or half a minute is over."""
        wait_until(condition)

    def wait_for_bursts(self, number: int) -> None:
        """Until every node but the reference has records of burst ``number``."""
        tasks = range(1, len(self.processes))

        def has_come() -> bool:
            return all(
                any(exchange["burst"] >= number for exchange in self.clock(task, "exchange"))
                for task in tasks
            )

        wait_until(has_come)

    def end(self) -> list[tuple[int, str]]:
        """SIGTERM to all that still run; exit code and stderr of each."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        texts = [process.communicate(timeout=30)[1] for process in self.processes]
        return [(p.returncode, text) for p, text in zip(self.processes, texts, strict=True)]

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def records(path: Path) -> list[Record]:
    """All whole records of a file, [] when it is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]


def of_kind(path: Path, kind: str) -> list[Record]:
    """Records of one kind."""
    return [record for record in records(path) if record["kind"] == kind]


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until true. Raises AssertionError when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


def is_silence(note: str) -> bool:
    """Whether a note says that a peer was late, as happens on a machine that is busy with more."""
    return "does not answer" in note or "takes no data" in note


def write_clocks(path: Path, rates_ppb: dict[str, int]) -> dict[str, Any]:
    """Give each node a clock that has gained ``ppb`` for 1000 s; what was written."""
    origin = time.monotonic_ns() - 1000 * BILLION
    clocks = {
        node: {"origin_ns": origin, "monotonic_ppb": ppb, "realtime_offset_ns": 0}
        for node, ppb in rates_ppb.items()
    }
    path.write_text(json.dumps(clocks))
    return clocks


def true_offset_ns(clocks: dict[str, Any], node: str, reference: str, shown_ns: int) -> float:
    """Reference's clock minus the node's, when the latter shows ``shown_ns``."""
    own, other = clocks[node], clocks[reference]
    origin = own["origin_ns"]
    true_ns = origin + (shown_ns - origin) * BILLION // (BILLION + own["monotonic_ppb"])
    other_gain = (true_ns - other["origin_ns"]) * other["monotonic_ppb"] / BILLION
    return float(other_gain - (shown_ns - true_ns))


def assert_true_offset_is_inside(clocks: dict[str, Any], node: str, exchanges: list[Record]):
    """Every exchange must allow the true offset of the skewed clocks."""
    slack = 100  # ns: whole numbers above, and the drift within one exchange
    for record in exchanges:
        offset = true_offset_ns(clocks, node, "node0", record["sent_ns"])
        assert record["answered_ns"] - record["received_ns"] <= offset + slack
        assert offset - slack <= record["arrived_ns"] - record["sent_ns"]
