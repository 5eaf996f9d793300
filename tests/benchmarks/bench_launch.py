"""How long ``hpcprof launch`` takes before the application starts, without nsys.

Run: ``python tests/benchmarks/bench_launch.py``. Medians of five, as time on the clock and as CPU
time of the launcher until the application looks at it; beside them an interpreter that does nothing
else, which is not ours. Limit: 60 ms of CPU time beyond it. On a busy machine the clock measures
the others' work.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MS = 60.0
REPEATS = 5

# prints the time at which it runs and the CPU time of its parent (proc(5), schedstat: ns first)
_APPLICATION = ["/bin/sh", "-c", "date +%s.%N; cat /proc/$PPID/schedstat"]


class Cost(NamedTuple):
    """From starting a process to its child's first output, in ms on the clock and of CPU time."""

    wall_ms: float
    cpu_ms: float


def launcher_cost(folder: Path, number: int) -> Cost:
    """Cost of one start through the launcher."""
    environ = {**os.environ, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "PYTHONPATH": str(ROOT)}
    # compiled once, as an installed package is
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")
    argv = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(folder / str(number))]
    return _measure([*argv, "--profiler", "none", "--", *_APPLICATION], environ)


def interpreter_cost() -> Cost:
    """The same for an interpreter that does nothing but start the application."""
    code = f"import os; os.spawnv(os.P_WAIT, {_APPLICATION[0]!r}, {_APPLICATION!r})"
    return _measure([sys.executable, "-c", code], os.environ)


def _measure(argv: Sequence[str], environ: Mapping[str, str]) -> Cost:
    began = time.time()
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    moment, cpu_ns, *_ = done.stdout.split()
    return Cost((float(moment) - began) * 1e3, int(cpu_ns) / 1e6)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def main() -> int:
    """Print the measurement; exit code 1 when the limit is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        # the first one compiles
        launched = _median([launcher_cost(Path(name), n) for n in range(REPEATS + 1)][1:])
    bare = _median([interpreter_cost() for _ in range(REPEATS)])
    for label, cost in (("launch", launched), ("interpreter alone", bare)):
        print(f"{label}: {cost.wall_ms:.1f} ms on the clock, {cost.cpu_ms:.1f} ms CPU")
    own = launched.cpu_ms - bare.cpu_ms
    print(f"the launcher's own: {own:.1f} ms CPU (limit {LIMIT_MS:.0f} ms)")
    return 0 if own <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
