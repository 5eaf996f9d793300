"""Unmodified trainings (``scripts/``) under ``hpcprof launch``, and what their phases took.

Faults are sleeps of different lengths, one per phase and all at once, in the odd steps. So one run
is its own reference: a fault is what the odd steps take longer than the even ones between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import NsysTools, read_rank
from hpcprof.trace import Trace, check_spans
from tests.unit import launching

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 32
FIRST, LAST = 8, 27  # recorded in detail
WINDOW = f"{FIRST}-{LAST}"
# milliseconds, far enough apart that one cannot be taken for another
FAULTS = {"input": 20, "forward": 60, "backward": 100, "optimizer": 80}
IN_GRAPH = ("forward", "backward", "optimizer")
_RUN_SECONDS = 300


@dataclass(frozen=True)
class Run:
    """A training that has ended: its run folder and what it printed."""

    paths: ArtifactPaths
    output: str

    @property
    def results(self) -> list[str]:
        """The last line of every rank: loss and checksum of all weights."""
        return sorted(line for line in self.output.splitlines() if " weights " in line)

    def numbers(self, prefix: str) -> list[float]:
        """The list of numbers that a rank printed after ``prefix``."""
        (line,) = [line for line in self.output.splitlines() if line.startswith(prefix)]
        return [float(each) for each in json.loads(line[len(prefix) :])]

    def trace(self, rank: int, workdir: Path, tools: NsysTools | None = None) -> Trace:
        """What is known of a rank, as collect reads it."""
        trace = read_rank(self.paths, rank, workdir, tools)
        check_spans(trace.spans)
        return trace


def slow(faults: Mapping[str, float], *, steps: str = "odd", rank: int | None = None) -> dict:
    """The environment that makes a script slow: ``faults`` are milliseconds by phase."""
    variables = {f"SLOW_{where.upper()}": str(size) for where, size in faults.items()}
    only = {} if rank is None else {"SLOW_RANK": str(rank)}
    return {**variables, **only, "SLOW_STEPS": steps, "STEPS": str(STEPS)}


def bare(python: Path, script: str, folder: Path, env: Mapping[str, str], *, ranks: int) -> Run:
    """Without hpcprof."""
    return _run([str(python), str(SCRIPTS / script)], folder, env, ranks)


def launched(
    python: Path,
    script: str,
    folder: Path,
    env: Mapping[str, str],
    *,
    ranks: int,
    profiler: str = "none",
    **settings: object,
) -> Run:
    """In front of the same command: hpcprof launch; ``settings`` go into run.json."""
    launching.write_run_json(folder, **settings)
    argv = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(folder)]
    command = [*argv, "--profiler", profiler, "--", str(python), str(SCRIPTS / script)]
    return _run(command, folder, env, ranks)


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str], ranks: int) -> Run:
    """One process, or ``ranks`` under mpirun. Raises AssertionError when it fails."""
    ours = ("HPCPROF_", "SLURM_", "OMPI_", "PMI", "SLOW_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environ |= {"PYTHONPATH": str(launching.REPOSITORY), "CUDA_VISIBLE_DEVICES": "-1"}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", **env}
    if ranks > 1:
        # on fewer cores than processes, polling would cost the others their time
        environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
        command = [*mpirun, *command]
    else:
        environ |= {rank_env.LOCAL_RANK: "0", rank_env.LOCAL_WORLD_SIZE: "1"}
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(ArtifactPaths(folder), done.stdout)


def training(run: Run, rank: int) -> dict:
    """``training.json`` of a rank."""
    record: dict = json.loads(run.paths.training(rank).read_text())
    return record


def steps(trace: Trace) -> list[int]:
    """Numbers of the steps that were recorded, in the order of time."""
    spans = trace.spans[trace.spans["kind"] == "step"].sort_values("start_ns")
    return [int(number) for number in spans["step"]]


def operations(trace: Trace, source: str, replica: int | None = None) -> pd.DataFrame:
    """Operations of the recorded steps that a source saw, with ``ms``."""
    spans = trace.spans
    found = spans[(spans["kind"] == "op") & (spans["source"] == source)]
    found = found[found["step"].between(FIRST, LAST)]
    if replica is not None:
        found = found[found["replica"].fillna(0) == replica]
    return found.assign(ms=(found["end_ns"] - found["start_ns"]) / 1e6)


def collectives(trace: Trace) -> pd.DataFrame:
    """Every Horovod allreduce of a step, with ``ms``."""
    spans = trace.spans
    found = spans[(spans["kind"] == "collective") & (spans["op"] == "allreduce")]
    found = found[found["step"].notna()]
    return found.assign(ms=(found["end_ns"] - found["start_ns"]) / 1e6)


def share_in_phases(found: pd.DataFrame) -> float:
    """Share of the operations' time that is in a phase other than ``other``."""
    known = found[found["phase"].notna() & (found["phase"] != "other")]
    return float(known["ms"].sum() / found["ms"].sum())


def per_step(found: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds of each phase (columns) in each step (rows)."""
    phases = found["phase"].astype(str)
    table = found.groupby([found["step"].astype(int), phases])["ms"].sum().unstack(fill_value=0.0)
    return table.reindex(range(FIRST, LAST + 1), fill_value=0.0)


def python_waits(trace: Trace) -> pd.DataFrame:
    """As ``per_step``, of the phases that were seen from Python."""
    spans = trace.spans
    found = spans[(spans["kind"] == "phase") & (spans["source"] == "hpcprof")]
    return per_step(found.assign(ms=(found["end_ns"] - found["start_ns"]) / 1e6))


def excess(table: pd.DataFrame, phase: str) -> float:
    """What the phase takes longer in odd steps than in even ones: medians, in ms."""
    column = table[phase]
    odd = column.index % 2 == 1
    return float(column[odd].median() - column[~odd].median())


def noise(table: pd.DataFrame, phase: str) -> float:
    """How far off ``excess`` may be on a busy machine: two standard errors, in ms.

    That of a median is 1.25 s / sqrt(n), s being 1.48 times the median deviation.
    """
    variance = 0.0
    for _, column in table[phase].groupby(table.index % 2):
        deviation = float((column - column.median()).abs().median())
        variance += (1.2533 * 1.4826 * deviation) ** 2 / len(column)
    return 2 * float(variance**0.5)


def is_size(table: pd.DataFrame, phase: str, milliseconds: float) -> bool:
    """Whether the excess is this one to 10 %, as far as the machine lets it be measured."""
    off = abs(excess(table, phase) - milliseconds)
    return off <= 0.1 * milliseconds + min(noise(table, phase), 0.15 * milliseconds)
