"""Cost of one span: off, on, and on with NVTX. Prints a table; medians of five rounds.

    python tests/benchmarks/bench_annotate.py

Limits that users are promised: 2 µs on without NVTX attached, 3 µs with. The time includes writing
the records: a flush after every 20 spans, as a step would cause.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 5
STEPS = 2_000
SPANS_PER_STEP = 20

MEASURE = f"""
import time
from hpcprof import annotate
def steps():
    begin = time.perf_counter_ns()
    for _ in range({STEPS}):
        with annotate.step():
            for _ in range({SPANS_PER_STEP}):
                with annotate.phase("input"):
                    pass
    return (time.perf_counter_ns() - begin) / ({STEPS} * {SPANS_PER_STEP})
steps()
print(*(steps() for _ in range({ROUNDS})))
"""


def measure(python: str, environment: dict[str, str]) -> float:
    """Median cost of a span in ns, in a process of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HPCPROF_")}
    with tempfile.TemporaryDirectory() as folder:
        here = os.path.dirname(os.path.abspath(__file__))
        env["PYTHONPATH"] = os.path.dirname(os.path.dirname(here))
        if environment:
            env.update({"HPCPROF_RANK_FOLDER": folder, "HPCPROF_RANK": "0", **environment})
        done = subprocess.run(
            [python, "-c", MEASURE], env=env, capture_output=True, text=True, check=True
        )
    return statistics.median(float(value) for value in done.stdout.split())


def main() -> None:
    """Print the table. An argument names another Python, for example one with nvtx."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    print(f"{'span':<24}{'median ns':>10}")
    for name, environment in (
        ("off", {}),
        ("on", {"HPCPROF_ON": "1"}),
        ("on, nvtx not attached", {"HPCPROF_NVTX": "1"}),
    ):
        print(f"{name:<24}{measure(python, environment):>10.0f}")


if __name__ == "__main__":
    main()
