"""What recording costs a training on this machine: whole runs with and without it, in turn.

    python -m tests.benchmarks.bench_whole_runs

Two local ranks of the workload image-cnn, in these modes:

- ``bare``: started directly. The workload's calls of annotate are there, and inert;
- ``none``: under ``hpcprof launch --profiler none``: our own spans only;
- ``nsys``: under ``hpcprof launch --profiler nsys``, all of the run recorded;
- ``window``: the same with some steps recorded; told apart are steps inside and outside.

Each pass runs every mode once, every other pass in the opposite order (ABBA), so that a drift of
the machine cancels. In every mode the same few lines note when each step begins; a run's figure is
the median time from one step to the next. Printed are the median of the runs, the ratio to bare
(geometric mean over passes of the ratio within a pass) and its 95 % bootstrap interval over passes.
No limit, as this depends on the machine: leave it alone meanwhile. About 5 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from tests.setup import paths as tools

REPOSITORY = Path(__file__).resolve().parents[2]
MODES = ("bare", "none", "nsys", "window")
INSIDE, OUTSIDE = "window, inside", "window, outside"
ROWS = ("bare", "none", "nsys", INSIDE, OUTSIDE)
WARM_UP_STEPS = 10
RESAMPLES = 10_000
_RUN_SECONDS = 300

# the workload, with a note of when each step begins
_TIMED = """
import json, os, sys, time
from hpcprof import annotate
original, begins = annotate.step, []
def step(*arguments, **names):
    begins.append(time.monotonic_ns())
    return original(*arguments, **names)
annotate.step = step
from hpcprof.workloads.cli import main
code = main(sys.argv[2:])
with open(os.path.join(sys.argv[1], f"{os.getpid()}.json"), "w") as stream:
    json.dump(begins, stream)
sys.exit(code)
"""


class Setting(NamedTuple):
    """What all runs have in common. ``window`` are the first and last step it records."""

    python: Path
    nsys: Path
    strategy: str
    ranks: int
    steps: int
    window: tuple[int, int]
    data_dir: Path


class FailedRunError(Exception):
    """A run ended badly, or did not record what it should have; the text says which and why."""


def step_times_ms(mode: str, setting: Setting, folder: Path) -> dict[str, float]:
    """Run once in ``mode``; median step of each row of the table that it has. Raises FailedRun."""
    times = folder / "times"
    times.mkdir(parents=True)
    run_dir = folder / "run"
    command = [*_launcher(mode, setting, run_dir), str(setting.python), "-c", _TIMED, str(times)]
    command += ["image-cnn", "--strategy", setting.strategy, "--steps", str(setting.steps)]
    command += ["--data-dir", str(setting.data_dir)]
    _run(command, setting, folder)
    if mode in ("nsys", "window"):
        _check_recorded(run_dir, setting)
    inside: list[float] = []
    outside: list[float] = []
    for file in times.iterdir():
        begins = json.loads(file.read_text())
        for step in range(WARM_UP_STEPS, len(begins) - 1):
            is_inside = setting.window[0] <= step <= setting.window[1]
            (inside if is_inside else outside).append((begins[step + 1] - begins[step]) / 1e6)
    if mode == "window":
        return {INSIDE: statistics.median(inside), OUTSIDE: statistics.median(outside)}
    return {mode: statistics.median(inside + outside)}


def _launcher(mode: str, setting: Setting, run_dir: Path) -> list[str]:
    """What goes before the training; writes the run's record."""
    if mode == "bare":
        return []
    section: dict[str, Any] = {"nsys_path": str(setting.nsys)}
    if mode == "window":
        section["profile_steps"] = f"{setting.window[0]}-{setting.window[1]}"
    run_dir.mkdir()
    record = {"schema": 1, "name": "overhead", "strategy": setting.strategy, "launch": section}
    ArtifactPaths(run_dir).run_json.write_text(json.dumps(record))
    profiler = "none" if mode == "none" else "nsys"
    argv = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(run_dir)]
    return [*argv, "--profiler", profiler, "--"]


def _run(command: Sequence[str], setting: Setting, folder: Path) -> None:
    """All ranks, to their end. Raises FailedRunError."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCPROF_")}
    environ["PYTHONPATH"] = str(REPOSITORY)
    if setting.strategy == "horovod":
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(setting.ranks)]
        # on fewer cores than ranks and nsys need, polling would cost the others their time
        environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
        starts = [([*mpirun, *command], environ)]
    else:
        starts = [(command, {**environ, **rank}) for rank in _multiworker(setting.ranks)]
    log = folder / "output.log"
    with log.open("ab") as output:
        running = [
            subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            for argv, env in starts
        ]
        try:
            codes = [process.wait(_RUN_SECONDS) for process in running]
        finally:
            for process in running:
                process.kill()
    if any(codes):
        raise FailedRunError(f"ended with {codes}: {log.read_text(errors='replace')[-1000:]}")


def _multiworker(ranks: int) -> list[Mapping[str, str]]:
    """The variables of each rank, as ``hpcprof launch --ranks`` sets them."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
    workers = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
    for holder in holders:
        holder.close()
    found: list[Mapping[str, str]] = []
    for rank in range(ranks):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        found.append(
            {
                "TF_CONFIG": json.dumps(task),
                rank_env.LOCAL_RANK: str(rank),
                rank_env.LOCAL_WORLD_SIZE: str(ranks),
            }
        )
    return found


def _check_recorded(run_dir: Path, setting: Setting) -> None:
    """Raises FailedRunError when nsys was not at work on every rank: that would cost nothing."""
    for rank in range(setting.ranks):
        written = json.loads(ArtifactPaths(run_dir).manifest(rank).read_text())
        if written["state"] != "OK":
            reasons = [written["state_reason"], *written["warnings"]]
            raise FailedRunError(f"rank {rank} is {written['state']}: {'; '.join(reasons)}")


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the ratios of the passes, and its 95 % interval by resampling passes."""
    logs = [math.log(ratio) for ratio in ratios]
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


def print_table(passes: Sequence[Mapping[str, float]]) -> None:
    """One line for each row that was measured in every pass."""
    print(f"{'mode':<18}{'step ms':>9}{'ratio':>9}{'95 % interval':>19}{'runs':>6}")
    for row in ROWS:
        if not all(row in one for one in passes):
            print(f"{row:<18}not measured")
            continue
        median = statistics.median(one[row] for one in passes)
        ratio, low, high = interval([one[row] / one["bare"] for one in passes])
        # of one or two passes there is nothing to resample
        bounds = "" if row == "bare" or len(passes) < 3 else f"{low:.3f} to {high:.3f}"
        print(f"{row:<18}{median:>9.1f}{ratio:>9.3f}{bounds:>19}{len(passes):>6}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=4, help="runs of each mode (4)")
    parser.add_argument("--steps", type=int, default=100, help="in each run (100)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--strategy", choices=("multiworker", "horovod"), default="multiworker")
    parser.add_argument("--modes", nargs="+", choices=MODES[1:], default=list(MODES[1:]))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 4 when the training environment or nsys is missing."""
    options = _parser().parse_args(arguments)
    python, nsys = tools.train_python(), tools.nsys()
    if python is None or nsys is None:
        print("no training environment or no nsys (make setup)", file=sys.stderr)
        return 4
    first = WARM_UP_STEPS + (options.steps - WARM_UP_STEPS) // 3
    last = WARM_UP_STEPS + 2 * (options.steps - WARM_UP_STEPS) // 3
    modes = ["bare", *options.modes]
    passes: list[dict[str, float]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        setting = Setting(
            python, nsys, options.strategy, options.ranks, options.steps, (first, last), data
        )
        code = 0
        try:
            # the first run makes the images, and what the machine reads from disk once
            step_times_ms("bare", setting._replace(steps=WARM_UP_STEPS + 5), Path(name) / "first")
            for number in range(options.passes):
                found: dict[str, float] = {}
                for mode in modes if number % 2 == 0 else modes[::-1]:
                    found |= step_times_ms(mode, setting, Path(name) / f"{number}-{mode}")
                passes.append(found)
                print(f"pass {number + 1}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        except FailedRunError as error:
            print(f"a run failed, its pass is left out: {error}", file=sys.stderr)
            code = 1
    print(f"{options.strategy}, {options.ranks} ranks, {options.steps} steps")
    print(f"window: steps {first} to {last}; the first {WARM_UP_STEPS} steps are left out")
    if passes:
        print_table(passes)
    return code


if __name__ == "__main__":
    sys.exit(main())
