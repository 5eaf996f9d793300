"""What each level of instrumentation costs, in one process: on and off in turn.

    python -m tests.benchmarks.bench_overhead

A training that knows nothing of hpcprof (overhead_training.py), as a loop of one's own and as
Keras's ``fit``, one rank on one core, under ``hpcprof launch --profiler none``, for each TensorFlow
that is set up. Blocks of 20 steps:

- ``off``: hooks are attached and silent;
- ``L0+L1``: they mark every step, its input and the call of the training function;
- ``L2``: as well, TensorFlow names each of its operations and the recorder writes them down;
- ``L3``: as L0+L1, and tf.profiler records (host only); starting and writing are told apart.

The figure of a block is its median step, that of a level the ratio to ``off`` within a round
(geometric mean over rounds), with the 95 % interval by resampling rounds; the same of processor
time (all threads of the process), which other processes disturb less. Limits: on the clock the
upper end for L0+L1 is at most 1 %, and spans per step times the cost of a span (bench_annotate) at
most 0.1 % of a step of at least 50 ms. What L0+L1 adds is also told in µs, from steps that have
next to nothing to do. Leave the machine alone meanwhile. About 10 minutes in all. Exit code 1 when
a limit was not shown to be kept, 4 when no TensorFlow is set up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers import read_rank
from tests.benchmarks import bench_annotate
from tests.benchmarks.bench_whole_runs import interval
from tests.setup import paths as tools

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).with_name("overhead_training.py")
LEVELS = ("L0+L1", "L2", "L3")
MAX_OVERHEAD = 0.01  # of L0+L1, upper end of its interval
MAX_SPANS_SHARE = 0.001  # spans per step times the cost of one
MIN_STEP_MS = 50.0
WARM_UP_ROUND = 0
FORMS = ("loop", "fit")
EMPTY, EMPTY_BLOCK = "empty", 200
DEEP_EVERY = 5  # rounds with L2 and L3: these need no limit
_RUN_SECONDS = 1800


class Measured(NamedTuple):
    """What one process came to: its blocks, and the spans that a step with hooks has."""

    blocks: list[dict[str, Any]]
    spans_per_step: float


class FailedRunError(Exception):
    """The training ended badly or was not recorded; the text says why."""


def measure(python: Path, form: str, rounds: int, block: int) -> Measured:
    """Run the training once. Raises FailedRunError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_dir, times = folder / "run", folder / "times.json"
        run_dir.mkdir()
        record = {"schema": 1, "launch": {"op_steps": None}}
        ArtifactPaths(run_dir).run_json.write_text(json.dumps(record))
        command = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(run_dir)]
        command += ["--profiler", "none", "--", str(python), str(TRAINING), str(times)]
        command += [form, str(rounds), str(DEEP_EVERY), str(block)]
        done = subprocess.run(
            command,
            env=_environ(),
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        if done.returncode or not times.exists():
            raise FailedRunError((done.stdout + done.stderr)[-1500:])
        blocks = [one for one in json.loads(times.read_text()) if one["round"] != WARM_UP_ROUND]
        return Measured(blocks, _spans_per_step(run_dir, folder))


def _environ() -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HPCPROF_")}
    scripts = REPOSITORY / "tests" / "e2e" / "scripts"
    kept |= {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{scripts}", "CUDA_VISIBLE_DEVICES": "-1"}
    kept |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**kept, rank_env.LOCAL_RANK: "0", rank_env.LOCAL_WORLD_SIZE: "1"}


def _spans_per_step(run_dir: Path, folder: Path) -> float:
    """Records of ours in a step. Raises FailedRunError without any: that would cost nothing."""
    spans = read_rank(ArtifactPaths(run_dir), 0, folder, None).spans
    own = spans[(spans["source"] == "hpcprof") & spans["step"].notna()]
    steps = own[own["kind"] == "step"]
    if not len(steps):
        raise FailedRunError("the hooks marked no step")
    return len(own[own["step"].isin(steps["step"])]) / len(steps)


def ratios(blocks: Sequence[Mapping[str, Any]], level: str, clock: str) -> list[float]:
    """Median step of the level to that of ``off`` in the same round, for each round with both.

    ``clock``: "ms" or "cpu_ms".
    """
    found: dict[int, dict[str, float]] = {}
    for each in blocks:
        found.setdefault(each["round"], {})[each["mode"]] = statistics.median(each[clock])
    return [one[level] / one["off"] for one in found.values() if level in one and "off" in one]


def print_levels(blocks: Sequence[Mapping[str, Any]]) -> bool:
    """One line per level; whether L0+L1 is within its limit."""
    is_within = True
    head = f"{'level':<8}{'step ms':>9}{'rounds':>8}"
    print(f"{head}{'cost, 95 % interval':>30}{'of processor time':>30}  limit")
    for level in ("off", *LEVELS):
        of_level = [one for one in blocks if one["mode"] == level]
        step = statistics.median(ms for one in of_level for ms in one["ms"])
        line = f"{level:<8}{step:>9.2f}{len(of_level):>8}"
        if level != "off":
            wall, cpu = (_costs(blocks, level, clock) for clock in ("ms", "cpu_ms"))
            line += f"{_interval(wall):>30}{_interval(cpu):>30}"
            if level == LEVELS[0]:
                is_within = wall[2] <= 100 * MAX_OVERHEAD
                is_exceeded = wall[1] > 100 * MAX_OVERHEAD
                verdict = "kept" if is_within else "EXCEEDED" if is_exceeded else "NOT SHOWN"
                line += f"  upper end at most {MAX_OVERHEAD:.0%}: {verdict}"
        print(line)
    switches = [one["switch"] for one in blocks if one["mode"] == "L3"]
    print(f"L3 start and write: {statistics.median(switches):.0f} ms for each window")
    return is_within


def _costs(blocks: Sequence[Mapping[str, Any]], level: str, clock: str) -> tuple[float, ...]:
    """What the level costs in percent of a step, and the ends of its interval."""
    return tuple(100 * (value - 1) for value in interval(ratios(blocks, level, clock)))


def _interval(cost: tuple[float, ...]) -> str:
    return f"{cost[0]:+.2f} % ({cost[1]:+.2f} to {cost[2]:+.2f})"


def print_added(python: Path, rounds: int, measured: Measured) -> None:
    """What hooks add to a step that has nothing to do. Raises FailedRunError."""
    blocks = measure(python, EMPTY, rounds, EMPTY_BLOCK).blocks
    medians: dict[str, list[float]] = {}
    for one in blocks:
        medians.setdefault(one["mode"], []).append(statistics.median(one["cpu_ms"]))
    pairs = zip(medians["off"], medians["L0+L1"], strict=True)
    added_ms = statistics.median(on - off for off, on in pairs)
    step_ms = statistics.median(ms for one in measured.blocks for ms in one["ms"])
    print(
        f"L0+L1 add {1000 * added_ms:.0f} µs of processor time to an empty step of "
        f"{1000 * statistics.median(medians['off']):.0f} µs: {added_ms / step_ms:.3%} of the other"
    )


def print_spans(python: Path, measured: Measured) -> bool:
    """Spans per step times unit cost; whether that, and the length of a step, are as promised."""
    unit_ns = bench_annotate.measure(str(python), {rank_env.OWNER: ""})
    off = [ms for one in measured.blocks if one["mode"] == "off" for ms in one["ms"]]
    step_ms = statistics.median(off)
    share = measured.spans_per_step * unit_ns / (step_ms * 1e6)
    is_within = share <= MAX_SPANS_SHARE and step_ms >= MIN_STEP_MS
    print(
        f"{measured.spans_per_step:.1f} spans per step, {unit_ns:.0f} ns each: {share:.4%} of a "
        f"step of {step_ms:.1f} ms (limits: {MAX_SPANS_SHARE:.1%}, at least {MIN_STEP_MS:.0f} ms): "
        f"{'kept' if is_within else 'NOT KEPT'}"
    )
    return is_within


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50, help="blocks of each mode (50)")
    parser.add_argument("--block", type=int, default=20, help="steps in a block (20)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--python", type=Path, help="only this one, with TensorFlow")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each TensorFlow; the exit code is told above."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rounds < DEEP_EVERY:
        parser.error(f"--rounds must be at least {DEEP_EVERY}: only every so many have L2 and L3")
    there = [options.python] if options.python else [tools.keras3_python(), tools.train_python()]
    pythons = [python for python in there if python is not None]
    if not pythons:
        print("no training environment (make setup)", file=sys.stderr)
        return 4
    code = 0
    for python in pythons:
        version = [str(python), "-c", "from importlib.metadata import version as v"]
        version[-1] += "; print('TensorFlow', v('tensorflow'), 'Keras', v('keras'))"
        name = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
        for form in options.forms:
            print(f"{name}, {form}")
            try:
                measured = measure(python, form, options.rounds, options.block)
                kept = [print_levels(measured.blocks), print_spans(python, measured)]
                if form == "loop":
                    print_added(python, options.rounds, measured)
            except FailedRunError as error:
                print(f"not measured: {error}", file=sys.stderr)
                kept = [False]
            code = code if all(kept) else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
