"""When the steps of each rank ended, where that is asked for: overhead of the profiler, hangs.

Reads the step spans of a store, one rank at a time, and nothing in the usual run without either.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.analyses import profiler_overhead as overhead
from hpcprof.analyses.profiler_overhead import ProfilerOverhead, profiler_overhead, rank_steps
from hpcprof.trace.columns import STEP, STEP_KIND
from hpcprof.trace.model import RankInfo
from hpcprof.trace.store import TraceStore


def measured_overhead(store: TraceStore, infos: Iterable[RankInfo]) -> ProfilerOverhead:
    """What the profiler cost in the steps that it recorded."""
    recorded = {}
    for info in infos:
        nsys = info.sources.get("nsys")
        if nsys is None or nsys.first_step is None or nsys.last_step is None:
            continue
        # without our own records no other steps are known than the recorded ones
        if nsys.is_usable and info.sources["spans"].is_usable:
            recorded[info.rank] = nsys.first_step, nsys.last_step
    return profiler_overhead(
        {
            rank: rank_steps(store.read_spans(rank, overhead.COLUMNS_READ, overhead.KINDS_READ))
            for rank in recorded
        },
        recorded,
    )


def last_ended_steps(store: TraceStore, infos: Iterable[RankInfo]) -> dict[int, int]:
    """Rank → last step that ended; {} in a run in which no watchdog noted anything."""
    known = list(infos)
    if not any(info.hangs for info in known):
        return {}
    ended = {}
    for info in known:
        steps = store.read_spans(info.rank, [STEP], [STEP_KIND])[STEP].dropna()
        if len(steps):
            ended[info.rank] = int(steps.max())
    return ended
