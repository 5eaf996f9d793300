"""Traces of an unmodified Horovod training as the hooks and the recorder leave them, truth known.

Each step has a wait for input, one call of the compiled training function, and Horovod's range of
each of three tensors; in a window of steps also the operations, on two executor threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.align.node_clock import TIGHT, NodeClock
from hpcprof.analyses.run_results import RunResults
from hpcprof.analyses.shared_steps import step_counts
from hpcprof.artifacts import manifest
from hpcprof.pipeline.agents import AgentRecords
from hpcprof.pipeline.analysis import analyse
from hpcprof.pipeline.ingest import Ingested
from hpcprof.trace import columns as c
from hpcprof.trace.check import check_spans
from hpcprof.trace.frame import spans_frame
from hpcprof.trace.model import JobInfo, Moment, RankInfo, SourceState, Trace, Training
from hpcprof.trace.store import TraceStore

MS = 1_000_000
MEAN_MS = {c.INPUT: 2.0, c.FORWARD: 30.0, c.BACKWARD: 60.0, c.OPTIMIZER: 5.0, "host": 3.0}
UNNAMED_MS = 0.4  # at the start of each call, before the first operation
TRANSFER_MS = 10.0
WINDOW = range(10, 30)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """What a training is like. ``in_window_frac``: what naming adds to all work of those steps.

    ``on_gpu``: each operation starts a kernel that runs half as long, on one stream.
    ``tf_window``: steps that tf.profiler records on rank 0, ``in_tf_frac`` what that adds there.
    ``extra_in_step_ms`` of (rank, phase, step) comes on top; of phase forward only.
    """

    in_window_frac: float = 0.0
    on_gpu: bool = False
    tf_window: range = range(0)
    in_tf_frac: float = 0.0
    transfer_ms: float = TRANSFER_MS
    collectives: bool = True
    call: bool = True
    input_marked: bool = True
    training: Training | None = None
    extra_in_step_ms: Callable[[int, str, int], float] = lambda *_: 0.0


def write_traces(
    folder: Path,
    ranks: int = 4,
    steps: int = 60,
    extra_ms: Mapping[tuple[int, str], float] | None = None,
    window: Callable[[int], Collection[int]] = lambda _rank: WINDOW,
    **given: Any,
) -> TraceStore:
    """A store of aligned traces; ``extra_ms`` (rank, phase) slows a rank in every step.

    ``window``: rank → steps whose operations are named there. ``given``: fields of ``Form``. Two
    ranks are on one node.
    """
    form = Form(**given)
    rows: list[Rows] = [[] for _ in range(ranks)]
    now = [0] * ranks
    for step in range(steps):
        plans = [
            _Plan(rank, step, extra_ms or {}, form, is_named=step in window(rank))
            for rank in range(ranks)
        ]
        ready = [begin + plan.until_ready for begin, plan in zip(now, plans, strict=True)]
        last = max(ready)
        for rank, plan in enumerate(plans):
            done = (last if form.collectives else ready[rank]) + round(form.transfer_ms * MS)
            rows[rank] += plan.rows(now[rank], done)
            now[rank] = done + plan.after_ns
    store = TraceStore(folder / "store")
    for rank in range(ranks):
        names = [*rows[rank][0], c.OP, c.BYTES, c.LANE, c.REPLICA]
        table = spans_frame({name: [row.get(name) for row in rows[rank]] for name in names})
        store.write(Trace(_info(rank, ranks, steps, form.training), check_spans(table)))
    return store


def results(store: TraceStore, steps: range | None = None) -> RunResults:
    """What analyses find in the store."""
    infos = [store.rank_info(rank) for rank in store.ranks()]
    nodes = tuple(sorted({info.node for info in infos}))
    counts = {info.rank: step_counts(store.read_spans(info.rank)) for info in infos}
    clocks = {node: NodeClock(node, 0, 0, 0, 2_000, "test", TIGHT, 4) for node in nodes}
    ingested = Ingested(store, clocks, 0, AgentRecords(), None, counts, ())
    job = JobInfo("zero-code", "", "horovod", infos[0].world_size, nodes)
    return analyse(ingested, job, steps).results


def _info(rank: int, ranks: int, steps: int, training: Training | None) -> RankInfo:
    states = {
        name: SourceState(name, manifest.OK, rows=9, first_step=0, last_step=steps - 1)
        for name in ("spans", "recorder")
    }
    return RankInfo(
        *(rank, rank % 2, f"node{rank // 2}", ranks),
        exit_code=0,
        started=Moment(100 * 10**9, 0),
        ended=Moment(10**12, 10**12),
        sources=states,
        training=training,
    )


class _Plan:
    """What one rank does in one step, in ns."""

    def __init__(
        self,
        rank: int,
        step: int,
        extra_ms: Mapping[tuple[int, str], float],
        form: Form,
        *,
        is_named: bool,
    ) -> None:
        self.step, self.form = step, form
        is_traced = rank == 0 and step in form.tf_window
        self.op_sources = ["recorder"] * is_named + ["tfprof"] * is_traced
        slower = 1 + form.in_window_frac * is_named + form.in_tf_frac * is_traced
        wobble = (step * 7 + rank * 3) % 5 * 1000  # a rank's noise would be 0 without
        self.ns = {
            name: round((mean + extra_ms.get((rank, name), 0.0)) * MS * slower) + wobble
            for name, mean in MEAN_MS.items()
        }
        self.ns[c.FORWARD] += round(form.extra_in_step_ms(rank, c.FORWARD, step) * MS)
        self.until_ready = (
            self.ns[c.INPUT] + round(UNNAMED_MS * MS) + self.ns[c.FORWARD] + self.ns[c.BACKWARD]
        )
        self.after_ns = self.ns[c.OPTIMIZER] + self.ns["host"]

    def rows(self, begin: int, done: int) -> Rows:
        """The spans of the step; its collectives end at ``done``."""
        call = begin + self.ns[c.INPUT]
        forward = call + round(UNNAMED_MS * MS)
        backward = forward + self.ns[c.FORWARD]
        ready = backward + self.ns[c.BACKWARD]
        end = done + self.ns[c.OPTIMIZER]
        rows = [self._row(begin, end, c.STEP_KIND, "step", "hpcprof")]
        if self.form.input_marked:
            rows.append(self._phase(begin, call, c.INPUT))
        if self.form.call:
            rows.append(self._phase(call, end, c.COMPUTE_PHASE))
        if self.form.collectives:
            for number in (1, 2, 3):
                handed_over = backward + self.ns[c.BACKWARD] * number // 3
                row = self._row(handed_over, done, c.COLLECTIVE, "HorovodAllreduce", "recorder")
                rows.append({**row, c.OP: "allreduce", c.BYTES: 1000})
        for source in self.op_sources:
            ops = [self._op(call, call + 1000, c.OTHER, "thread 1")]
            ops += self._ops(forward, backward, c.FORWARD)
            ops += self._ops(backward, ready, c.BACKWARD)
            ops += self._ops(done, end, c.OPTIMIZER)
            rows += [{**row, c.SOURCE: source} for row in ops]
            if self.form.on_gpu:
                rows += [self._kernel(row, source) for row in ops]
        return rows

    def _phase(self, begin: int, end: int, phase: str) -> dict[str, Any]:
        return self._row(begin, end, c.PHASE_KIND, phase, "hpcprof", phase)

    def _ops(self, begin: int, end: int, phase: str) -> Rows:
        """Two threads at work: one all the time in two operations, one in the middle."""
        third = (end - begin) // 3
        return [
            self._op(begin, begin + third, phase, "thread 1"),
            self._op(begin + third, end, phase, "thread 1"),
            self._op(begin + third, end - third, phase, "thread 2"),
        ]

    def _kernel(self, op: dict[str, Any], source: str) -> dict[str, Any]:
        """Begins when its operation ends."""
        length = (op[c.END_NS] - op[c.START_NS]) // 2
        row = {**op, c.START_NS: op[c.END_NS], c.END_NS: op[c.END_NS] + length, c.SOURCE: source}
        return {**row, c.KIND: c.KERNEL, c.LANE: "stream 7", c.REPLICA: 0}

    def _op(self, begin: int, end: int, phase: str, lane: str) -> dict[str, Any]:
        row = self._row(begin, end, c.EXECUTOR_OP, f"{phase}/MatMul:MatMul", "recorder", phase)
        return {**row, c.LANE: lane}

    def _row(
        self, begin: int, end: int, kind: str, name: str, source: str, phase: str | None = None
    ) -> dict[str, Any]:
        return {
            **{c.START_NS: begin, c.END_NS: end, c.KIND: kind, c.NAME: name},
            **{c.PHASE: phase, c.STEP: self.step, c.SOURCE: source},
        }
