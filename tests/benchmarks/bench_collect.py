"""Time and memory of the parts of ``hpcprof collect`` that grow with the job.

Run: ``python tests/benchmarks/bench_collect.py --ranks 32 --steps 2000 --collectives 10``. Writes
the traces of such a job into a temporary folder, then runs each part in a process of its own:
``fit`` (clocks of the nodes from collectives), ``analyse`` (all results), ``figures`` (what the
page draws). Prints wall and CPU time, and the memory that the part added at most.
No limit: for comparing two versions on one machine.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.align.node_clock import BOUNDED, NodeClock
from hpcprof.analyses.shared_steps import shared_steps, step_counts
from hpcprof.pipeline.agents import AgentRecords
from hpcprof.pipeline.analysis import analyse, figures
from hpcprof.pipeline.ingest import Ingested, _fit
from hpcprof.trace import columns as c
from hpcprof.trace.frame import anchors_frame, concat_spans, empty_counters, spans_frame
from hpcprof.trace.model import JobInfo, RankInfo, Trace
from hpcprof.trace.store import TraceStore

PARTS = ("fit", "analyse", "figures")
PER_NODE = 4
STEP_NS, FORWARD_NS, CALL_NS = 100_000_000, 50_000_000, 1_000_000
# a step is its phases, then the collectives one after the other; they must fit
MOST_COLLECTIVES = (STEP_NS - FORWARD_NS) // CALL_NS
_DELAY_NS = 300_000
NAMED = slice(10, 30)  # steps whose operations are named, where --operations asks for any


def write_store(
    store: TraceStore, ranks: int, steps: int, collectives: int, operations: int
) -> None:
    """Traces of a training in which ranks reach each collective at random, and leave together.

    ``operations``: in each of the steps whose operations are named.
    """
    begin = np.arange(steps, dtype=np.int64)[:, None] * STEP_NS
    opens = begin + FORWARD_NS + np.arange(collectives) * CALL_NS
    for rank in range(ranks):
        delays = np.random.default_rng(rank).integers(0, _DELAY_NS, opens.shape)
        node = f"node{rank // PER_NODE}"
        info = RankInfo(rank, rank % PER_NODE, node, ranks)
        spans = [_spans(begin, opens + delays, opens), _operations(begin[NAMED], operations)]
        store.write(Trace(info, concat_spans(spans), empty_counters()))


def _spans(begin: Any, starts: Any, opens: Any) -> pd.DataFrame:
    """Per step a forward phase and profiled allreduces."""
    steps, collectives = opens.shape
    calls = opens.size
    numbers = np.arange(steps)
    return spans_frame(
        {
            c.START_NS: np.concatenate([begin.ravel(), starts.ravel()]),
            c.END_NS: np.concatenate([begin.ravel() + FORWARD_NS, opens.ravel() + CALL_NS // 2]),
            c.KIND: [c.PHASE_KIND] * steps + [c.COLLECTIVE] * calls,
            c.NAME: [c.FORWARD] * steps + ["allreduce"] * calls,
            c.PHASE: [c.FORWARD] * steps + [None] * calls,
            c.OP: [None] * steps + ["allreduce"] * calls,
            c.STEP: np.concatenate([numbers, np.repeat(numbers, collectives)]),
            c.BYTES: [None] * steps + [1 << 20] * calls,
            c.SOURCE: "benchmark",
        }
    )


def _operations(begin: Any, operations: int) -> pd.DataFrame:
    """Steps, and named operations one after the other, on two threads in turn."""
    length = FORWARD_NS // max(1, operations)
    starts = (begin + np.arange(operations) * length).ravel()
    steps = np.arange(NAMED.start, NAMED.start + len(begin))
    phases = [c.FORWARD, c.BACKWARD, c.OPTIMIZER]
    names = [f"model/layer_{i // 10}/MatMul_{i}:MatMul" for i in range(operations)]
    count = len(begin)
    return spans_frame(
        {
            c.START_NS: np.concatenate([begin.ravel(), starts]),
            c.END_NS: np.concatenate([begin.ravel() + STEP_NS, starts + length]),
            c.KIND: [c.STEP_KIND] * count + [c.EXECUTOR_OP] * starts.size,
            c.NAME: ["step"] * count + names * count,
            c.PHASE: [None] * count
            + [phases[i * 3 // operations] for i in range(operations)] * count,
            c.LANE: [None] * count + [f"thread {i % 2}" for i in range(operations)] * count,
            c.STEP: np.concatenate([steps, np.repeat(steps, operations)]),
            c.SOURCE: "benchmark",
        }
    )


def measure(part: str, store: TraceStore) -> dict[str, float]:
    """Run one part in this process; seconds, CPU seconds and MB (1e6 bytes)."""
    infos = [store.rank_info(rank) for rank in store.ranks()]
    nodes = sorted({info.node for info in infos})
    clocks = {node: NodeClock(node, 0, 0, 0, 1, "benchmark", BOUNDED) for node in nodes}
    agents = AgentRecords()
    counts = {info.rank: step_counts(store.read_spans(info.rank)) for info in infos}
    ingested = Ingested(store, clocks, 0, agents, None, counts, ())
    job = JobInfo("benchmark", "", "", len(infos), tuple(nodes))
    anchors: dict[str, dict[int, pd.DataFrame]] = {}
    for info in infos:
        anchors.setdefault(info.node, {})[info.rank] = _anchors()
    kept = store.path.with_name("analysis.pickle")
    found = pickle.loads(kept.read_bytes()) if part == "figures" else None
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    if part == "fit":
        _fit(store, shared_steps(counts.items()), anchors, agents)
    elif part == "analyse":
        found = analyse(ingested, job)
    else:
        figures(ingested, found)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    largest_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if part == "analyse":
        kept.write_bytes(pickle.dumps(found))
    return {"wall_s": wall, "cpu_s": cpu, "mb": (largest_kb - before_kb) * 1024 / 1e6}


def _anchors() -> pd.DataFrame:
    return anchors_frame(
        {c.SEQ: [0], c.BEFORE_NS: [0], c.AFTER_NS: [500], c.REALTIME_NS: [1_764_547_200 * 10**9]}
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--collectives", type=int, default=10, help="in each step")
    parser.add_argument("--operations", type=int, default=0, help="named in each of 20 steps")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(measure(options.part, TraceStore(options.store))))
        return 0
    if not 0 < options.collectives <= MOST_COLLECTIVES:
        parser.error(f"--collectives is 1 to {MOST_COLLECTIVES}")
    with tempfile.TemporaryDirectory() as folder:
        store = TraceStore(options.store or Path(folder) / "store")
        if not store.ranks():
            write_store(
                *(store, options.ranks, options.steps, options.collectives, options.operations)
            )
        print(
            f"{options.ranks} ranks, {options.steps} steps, {options.collectives} collectives, "
            f"{options.operations} operations in each of {NAMED.stop - NAMED.start}"
        )
        for part in PARTS:
            argv = [sys.executable, __file__, "--part", part, "--store", str(store.path)]
            done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
            cost = json.loads(done.stdout)
            print(
                f"{part:8} {cost['wall_s']:7.2f} s wall {cost['cpu_s']:7.2f} s CPU "
                f"{cost['mb']:7.0f} MB"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
