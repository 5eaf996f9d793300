"""Reads the ranks of a store one at a time and keeps of each what analyses across ranks need.

Which steps all ranks have is known by then: ``ingest`` counts them when it reads the files. Of long
trainings only some steps are kept (``analyses.shared_steps``), so that the collectives of all ranks
together take bounded memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from hpcprof.analyses import arrivals
from hpcprof.analyses import timeline as timelines
from hpcprof.analyses.collectives import MatchedCollectives, in_steps, matched
from hpcprof.analyses.shared_steps import SharedSteps
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class RankParts:
    """``frames``: rank → ``arrivals.per_rank``, of every rank; {} when there is no common form.

    ``collectives``: matched, in steps chosen by ``SharedSteps``.
    """

    frames: Mapping[int, pd.DataFrame]
    collectives: MatchedCollectives


def rank_parts(store: TraceStore, shared: SharedSteps, within: range | None = None) -> RankParts:
    """One pass over the ranks. ``within``: of these steps only; None means all."""
    if shared.form == arrivals.NONE:
        return RankParts({}, matched({}, shared.form))
    steps = shared.chosen(within)
    frames, kept = {}, {}
    for rank in store.ranks():
        spans = _spans(store, rank)
        frame = arrivals.per_rank(spans, shared.form)
        frames[rank] = frame if within is None else frame.loc[frame.index.isin(within)]
        if rank in shared.ranks:
            kept[rank] = in_steps(spans, shared.form, steps)
    return RankParts(frames, _matched(kept, shared, within))


def matched_collectives(store: TraceStore, shared: SharedSteps) -> MatchedCollectives:
    """The collectives alone."""
    steps = shared.chosen()
    kept = {rank: in_steps(_spans(store, rank), shared.form, steps) for rank in shared.ranks}
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


def _spans(store: TraceStore, rank: int) -> pd.DataFrame:
    return store.read_spans(rank, arrivals.COLUMNS_READ, arrivals.KINDS_READ)


def _matched(
    kept: Mapping[int, pd.DataFrame], shared: SharedSteps, within: range | None
) -> MatchedCollectives:
    found = matched(kept, shared.form)
    return replace(found, dropped=found.dropped + shared.uneven(within))
