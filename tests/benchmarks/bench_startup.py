"""What our folder on PYTHONPATH costs Pythons that are not the training.

    python tests/benchmarks/bench_startup.py [PYTHON]

Each pair is measured with and without the folder, one right after the other, in alternating order;
the table holds the medians, the median of the ratios, and a 95 % interval of that by bootstrap. A
pair whose interval holds 1 shows no cost. CPU time, because on a busy machine the clock measures
the others' work. ``worker pool`` is a spawn pool of eight, as data loaders
make one, started by a training.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hpcprof.artifacts import rank_env  # noqa: E402
from hpcprof.launch import state_folder  # noqa: E402

RESAMPLES = 2000
POOL = """
import multiprocessing, os

def work(number):
    return number

if __name__ == "__main__":
    os.environ["{owner}"] = str(os.getpid())
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        pool.map(work, range(64))
"""


class Comparison(NamedTuple):
    """Times in ms and the ratio with / without with the ends of its interval."""

    without_ms: float
    with_ms: float
    ratio: float
    low: float
    high: float


def compare(argv: Sequence[str], environs: Sequence[Mapping[str, str]], pairs: int) -> Comparison:
    """Run ``argv`` in both environments (without, with) ``pairs`` times."""
    for environ in environs:
        _seconds(argv, environ)  # compiles, and fills the caches
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        order = (0, 1) if number % 2 else (1, 0)
        found = {which: _seconds(argv, environs[which]) for which in order}
        times.append((found[0], found[1]))
    ratios = [ours / plain for plain, ours in times]
    chance = random.Random(0)
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return Comparison(
        statistics.median(plain for plain, _ in times) * 1e3,
        statistics.median(ours for _, ours in times) * 1e3,
        statistics.median(ratios),
        medians[int(0.025 * RESAMPLES)],
        medians[int(0.975 * RESAMPLES)],
    )


def _seconds(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """CPU time of the command and of all that it started and waited for."""
    with subprocess.Popen(argv, env=environ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.WEXITSTATUS(status)
    if status:
        raise SystemExit(f"{argv} failed (status {status})")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the table. An argument names another Python."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HPCPROF_")}
    plain.pop("PYTHONPATH", None)
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lib = state_folder.link_package(folder)
        ours = {
            **plain,
            "PYTHONPATH": str(lib),
            "PYTHONPYCACHEPREFIX": str(folder / "pycache"),  # as an installed package has it
            rank_env.RANK_FOLDER: str(folder),
            rank_env.STATE_FOLDER: str(folder),
            rank_env.RANK: "0",
            rank_env.HANG_AFTER: "600",
        }
        plain["PYTHONPYCACHEPREFIX"] = ours["PYTHONPYCACHEPREFIX"]
        script = folder / "pool.py"
        script.write_text(POOL.format(owner=rank_env.OWNER))
        print(
            f"{'CPU time':<22}{'without':>11}{'with':>11}{'difference':>12}   ratio (95 % interval)"
        )
        for label, argv, pairs in (
            ("python -c pass", [python, "-c", "pass"], 200),
            ("worker pool", [python, str(script)], 20),
        ):
            found = compare(argv, (plain, ours), pairs)
            difference = found.with_ms - found.without_ms
            print(
                f"{label:<22}{found.without_ms:>8.2f} ms{found.with_ms:>8.2f} ms"
                f"{difference:>9.2f} ms   {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
            )


if __name__ == "__main__":
    main()
