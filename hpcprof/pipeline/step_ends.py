"""When the steps of each rank ended, where that is asked for: overhead of the profiler, hangs.

Reads the step spans of a store, one rank at a time, and nothing in the usual run without either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcprof.analyses import profiler_overhead as overhead
from hpcprof.analyses.op_phases import NamedWindows
from hpcprof.analyses.profiler_overhead import (
    Asked,
    ProfilerOverhead,
    profiler_overhead,
    rank_steps,
)
from hpcprof.trace.columns import STEP, STEP_KIND
from hpcprof.trace.model import RankInfo
from hpcprof.trace.store import TraceStore


def measured_overhead(
    store: TraceStore, infos: Iterable[RankInfo], windows: NamedWindows
) -> ProfilerOverhead:
    """What nsys cost in the steps that it recorded."""
    recorded, is_part = {}, False
    for info in infos:
        nsys, spans = _steps(info, "nsys"), _steps(info, "spans")
        # without our own records no other steps are known than the recorded ones
        if nsys is not None and spans is not None:
            recorded[info.rank] = nsys
            is_part = is_part or spans[0] < nsys[0] or spans[1] > nsys[1]
    if not recorded:
        return ProfilerOverhead()
    if not is_part:
        return ProfilerOverhead(reason=overhead.NSYS.everywhere)
    return _compared(store, recorded, overhead.NSYS, windows.steps)


def overhead_of_naming(
    store: TraceStore, infos: Iterable[RankInfo], windows: NamedWindows
) -> dict[str, ProfilerOverhead]:
    """What the naming of operations, and what tf.profiler cost: by the field of NamedWindows.

    Only of those that were at work on any rank. Like is compared with like: steps in which other
    profilers were at work with others of that kind.
    """
    nsys = [window for info in infos if (window := _steps(info, "nsys")) is not None]
    nvtx, tf_profiler = list(windows.nvtx.values()), list(windows.tf_profiler.values())
    found = {}
    if nvtx:
        apart = _unlike(nvtx, tf_profiler) | _unlike(nvtx, nsys)
        found["nvtx"] = _compared(store, windows.nvtx, overhead.OPERATIONS, apart)
    if tf_profiler:
        apart = _unlike(tf_profiler, nvtx) | _unlike(tf_profiler, nsys)
        found["tf_profiler"] = _compared(store, windows.tf_profiler, overhead.TF_PROFILER, apart)
    return found


def _unlike(windows: list[tuple[int, int]], others: list[tuple[int, int]]) -> set[int]:
    """Steps around the windows that differ from them in whether one of the others was at work."""
    own, theirs = _covered(windows), _covered(others)
    if not own <= theirs:
        return theirs
    # the other was at work in all of them: where it was not, steps say nothing
    reach = 4 * len(own)
    return set(range(min(own) - reach, max(own) + reach + 1)) - theirs


def _compared(
    store: TraceStore, recorded: Mapping[int, tuple[int, int]], asked: Asked, apart: set[int]
) -> ProfilerOverhead:
    window = min(first for first, _ in recorded.values()), max(n for _, n in recorded.values())
    # not only what is next to the window: that may be apart
    reach = window[1] - window[0] + 1 if apart else 0
    around = window[0] - reach, window[1] + reach
    ranks = {
        rank: rank_steps(store.read_spans(rank, overhead.COLUMNS_READ, overhead.KINDS_READ), around)
        for rank in recorded
    }
    return profiler_overhead(ranks, recorded, asked, apart)


def _covered(windows: Iterable[tuple[int, int]]) -> set[int]:
    return {step for first, last in windows for step in range(first, last + 1)}


def _steps(info: RankInfo, name: str) -> tuple[int, int] | None:
    """First and last step of a source, if it can be used."""
    source = info.sources.get(name)
    if source is None or not source.is_usable:
        return None
    if source.first_step is None or source.last_step is None:
        return None
    return source.first_step, source.last_step


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
