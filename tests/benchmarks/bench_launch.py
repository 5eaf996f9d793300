"""How long ``hpcprof launch`` takes before the application starts, without nsys.

Run: ``python tests/benchmarks/bench_launch.py``. Prints the median of five and what of it is the
interpreter's own start. Limit: 60 ms beyond that.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MS = 60.0
REPEATS = 5

# prints the time at which it runs; its own start takes a millisecond
_APPLICATION = ["/bin/date", "+%s.%N"]


def launch_ms(folder: Path, number: int) -> float:
    """Milliseconds from starting the launcher to the application's first output."""
    environ = {**os.environ, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "PYTHONPATH": str(ROOT)}
    # compiled once, as an installed package is
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")
    argv = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(folder / str(number))]
    return _ms_to_output([*argv, "--profiler", "none", "--", *_APPLICATION], environ)


def interpreter_ms() -> float:
    """The same for an interpreter that starts the application at once."""
    code = f"import os; os.execv({_APPLICATION[0]!r}, {_APPLICATION!r})"
    return _ms_to_output([sys.executable, "-c", code], dict(os.environ))


def _ms_to_output(argv: list[str], environ: dict[str, str]) -> float:
    began = time.time()
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, check=True)
    return (float(done.stdout) - began) * 1e3


def main() -> int:
    """Print the measurement; exit code 1 when the limit is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        launched = [launch_ms(Path(name), number) for number in range(REPEATS + 1)][1:]
    bare = [interpreter_ms() for _ in range(REPEATS)]
    own = statistics.median(launched) - statistics.median(bare)
    print(f"launch to application, median of {REPEATS}: {statistics.median(launched):.1f} ms")
    print(f"interpreter alone: {statistics.median(bare):.1f} ms")
    best = min(launched) - min(bare)
    print(f"launcher's own: {own:.1f} ms (limit {LIMIT_MS:.0f} ms), best of each {best:.1f} ms")
    return 0 if own <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
