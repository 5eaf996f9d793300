"""Reads the ranks of a store one at a time and keeps of each what analyses across ranks need.

Which steps all ranks have is known by then: ``ingest`` counts them when it reads the files. Of long
trainings only some steps are kept (``analyses.shared_steps``), so that the collectives of all ranks
together take bounded memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from hpcprof.analyses import arrivals
from hpcprof.analyses import timeline as timelines
from hpcprof.analyses.busy_steps import busy_steps, of_any_rank
from hpcprof.analyses.collectives import MatchedCollectives, in_steps, matched
from hpcprof.analyses.shared_steps import SharedForms, SharedSteps
from hpcprof.trace.columns import COLLECTIVE, PHASE_KIND, STEP
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class RankParts:
    """``frames``: rank → ``arrivals.per_rank``, of every rank; {} when there is no common form.

    ``collectives``: matched, in steps chosen by ``SharedSteps`` and not busy. ``busy``: steps
    during which the profiler of any rank was at work; those in ``frames`` are still there.
    ``named``: rank → ``arrivals.named_steps``, of the ranks that have any. ``alone``: where
    there is no common form, the steps of each rank for themselves (arrivals.STEP_ENDS); else {}.
    """

    frames: Mapping[int, pd.DataFrame]
    collectives: MatchedCollectives
    busy: tuple[int, ...] = ()
    named: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    alone: Mapping[int, pd.DataFrame] = field(default_factory=dict)


def rank_parts(store: TraceStore, shared: SharedForms, within: range | None = None) -> RankParts:
    """One pass over the ranks. ``within``: of these steps only; None means all."""
    lateness, transfer = shared
    if lateness.form == arrivals.NONE:
        return _alone(store, within)
    steps = transfer.chosen(within)
    frames, named, kept, busy = {}, {}, {}, []
    for rank in store.ranks():
        spans = store.read_spans(rank, arrivals.COLUMNS_READ, arrivals.KINDS_READ)
        frames[rank] = _within(arrivals.per_rank(spans, lateness.form), within)
        told_apart = _within(arrivals.named_steps(spans, lateness.form), within)
        if len(told_apart):
            named[rank] = told_apart
        if rank in transfer.ranks:
            kept[rank] = in_steps(spans, transfer.form, steps)
        busy += [busy_steps(spans, form) for form in {lateness.form, transfer.form}]
    left_out = of_any_rank(busy)
    collectives = _without(_matched(kept, transfer, within), left_out)
    return RankParts(frames, collectives, left_out, named)


def _alone(store: TraceStore, within: range | None) -> RankParts:
    frames, busy = {}, []
    for rank in store.ranks():
        spans = store.read_spans(rank, arrivals.COLUMNS_READ, arrivals.KINDS_READ)
        frames[rank] = _within(arrivals.per_rank(spans, arrivals.STEP_ENDS), within)
        busy.append(busy_steps(spans, arrivals.STEP_ENDS))
    nothing = matched({}, arrivals.NONE)
    return RankParts({}, nothing, of_any_rank(busy), alone=frames)


def matched_collectives(store: TraceStore, shared: SharedSteps) -> MatchedCollectives:
    """The collectives alone."""
    steps = shared.chosen()
    kinds = [PHASE_KIND, COLLECTIVE]
    kept = {
        rank: in_steps(store.read_spans(rank, arrivals.COLUMNS_READ, kinds), shared.form, steps)
        for rank in shared.ranks
    }
    return _matched(kept, shared, None)


def timeline_spans(
    store: TraceStore, ranks: tuple[int, ...], steps: tuple[int, ...]
) -> dict[int, pd.DataFrame]:
    """What the timeline draws of ``ranks`` in ``steps``."""
    return {
        rank: timelines.in_steps(
            store.read_spans(rank, timelines.COLUMNS_READ, timelines.KINDS_READ), steps
        )
        for rank in ranks
    }


def _within(frame: pd.DataFrame, steps: range | None) -> pd.DataFrame:
    if steps is None:
        return frame
    kept: pd.DataFrame = frame.loc[frame.index.isin(steps)]
    return kept


def _without(collectives: MatchedCollectives, steps: tuple[int, ...]) -> MatchedCollectives:
    rows = collectives.rows
    if not steps or not len(rows):
        return collectives
    return replace(collectives, rows=rows[~rows[STEP].isin(steps)].reset_index(drop=True))


def _matched(
    kept: Mapping[int, pd.DataFrame], shared: SharedSteps, within: range | None
) -> MatchedCollectives:
    found = matched(kept, shared.form)
    return replace(found, dropped=found.dropped + shared.uneven(within))
