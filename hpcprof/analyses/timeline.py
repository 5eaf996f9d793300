"""What did each rank do in a few typical steps, on the job's clock?

1. The typical step is the one whose delay (latest minus earliest arrival, the longest that any rank
   waits) is the median delay; it is shown with its neighbours. This choice needs no shared clock.
2. Of each rank the phases and collectives of these steps are taken as they are: nothing is moved.
3. What is too much for one picture is left out and counted: the ranks that are least late, then the
   shortest spans.

Says nothing about order between nodes: that is as good as their clocks, which the picture must say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.analyses import arrivals
from hpcprof.analyses.step_matrix import StepMatrix
from hpcprof.trace import columns as c

MAX_SPANS = 4000
MAX_RANKS = 64

KINDS_READ = [c.PHASE_KIND, c.COLLECTIVE]
COLUMNS_READ = arrivals.COLUMNS_READ


class Bar(NamedTuple):
    """One phase or collective. ``start_ns`` is since the timeline's origin.

    A collective has the phase ``allreduce`` whatever its kind; ``bytes`` is None when unknown.
    """

    rank: int
    start_ns: int
    duration_ns: int
    phase: str
    name: str
    step: int
    bytes: int | None
    is_collective: bool


@dataclass(frozen=True)
class Timeline:
    """``ranks`` are the lanes, sorted by node, then rank; ``nodes[i]`` belongs to ``ranks[i]``.

    ``bars`` are sorted by lane and start. ``origin_ns``: the earliest start, on the job's clock.
    ``dropped`` counts spans, ``ranks_left_out`` ranks that are not in the picture. Without steps
    there are no lanes and no bars.
    """

    steps: tuple[int, ...]
    origin_ns: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    bars: tuple[Bar, ...]
    dropped: int
    ranks_left_out: int


def typical_steps(matrix: StepMatrix) -> tuple[int, ...]:
    """The step of median delay and its neighbours that can be compared; () without steps."""
    if not matrix.steps:
        return ()
    delay = matrix.arrival.max(axis=1) - matrix.arrival.min(axis=1)
    typical = matrix.steps[int(np.argsort(delay, kind="stable")[(len(delay) - 1) // 2])]
    return tuple(step for step in matrix.steps if abs(step - typical) <= 1)


def timeline(
    spans_of: Mapping[int, pd.DataFrame],
    steps: Sequence[int],
    node_of: Mapping[int, str],
    lateness_ns: Mapping[int, float] | None = None,
) -> Timeline:
    """The picture of ``steps`` (from ``typical_steps``).

    ``spans_of``: rank → spans with ``COLUMNS_READ``, aligned; those of the ``lanes`` and ``steps``
    are enough. ``node_of``: every rank of the run. ``lateness_ns`` (rank → ns, from ``stragglers``)
    says which ranks to keep when there are more than ``MAX_RANKS``.
    """
    if not steps:
        return Timeline((), 0, (), (), (), 0, 0)
    ranks = lanes(spans_of, node_of, lateness_ns or {})
    rows: pd.DataFrame = pd.concat(
        [_chosen(spans_of[rank], steps).assign(rank=rank, lane=i) for i, rank in enumerate(ranks)],
        ignore_index=True,
    )
    length = rows[c.END_NS] - rows[c.START_NS]
    longest = length.sort_values(ascending=False, kind="stable").index[:MAX_SPANS]
    kept = rows.loc[longest].sort_values(["lane", c.START_NS], kind="stable")
    origin = int(kept[c.START_NS].min()) if len(kept) else 0
    return Timeline(
        steps=tuple(steps),
        origin_ns=origin,
        ranks=ranks,
        nodes=tuple(node_of[rank] for rank in ranks),
        bars=_bars(kept, origin),
        dropped=len(rows) - len(kept),
        ranks_left_out=len(node_of) - len(ranks),
    )


def lanes(
    candidates: Iterable[int],
    node_of: Mapping[int, str],
    lateness_ns: Mapping[int, float],
    most: int = MAX_RANKS,
) -> tuple[int, ...]:
    """At most ``most`` ranks, the latest ones, sorted by node, then rank."""
    latest = sorted(candidates, key=lambda rank: (-lateness_ns.get(rank, 0.0), rank))[:most]
    return tuple(sorted(latest, key=lambda rank: (node_of[rank], rank)))


def in_steps(spans: pd.DataFrame, steps: Sequence[int]) -> pd.DataFrame:
    """What ``timeline`` draws of one rank's spans."""
    is_phase = (spans[c.KIND] == c.PHASE_KIND) & spans[c.PHASE].notna()
    is_drawn = (spans[c.KIND] == c.COLLECTIVE) | is_phase
    kept: pd.DataFrame = spans[is_drawn & spans[c.STEP].isin(steps)]
    return kept


def _chosen(spans: pd.DataFrame, steps: Sequence[int]) -> pd.DataFrame:
    is_collective = spans[c.KIND] == c.COLLECTIVE
    is_phase = (spans[c.KIND] == c.PHASE_KIND) & spans[c.PHASE].notna()
    rows = spans[(is_collective | is_phase) & spans[c.STEP].isin(steps)]
    # plain objects: categories of several ranks differ, and this is a small part of each
    chosen: pd.DataFrame = pd.DataFrame(
        {
            c.START_NS: rows[c.START_NS],
            c.END_NS: rows[c.END_NS],
            c.STEP: rows[c.STEP].astype("int64"),
            c.PHASE: rows[c.PHASE].astype(object).where(~is_collective, c.ALLREDUCE),
            c.NAME: rows[c.NAME].astype(object),
            c.BYTES: rows[c.BYTES].astype(object),
            "is_collective": is_collective[rows.index],
        }
    )
    return chosen


def _bars(rows: pd.DataFrame, origin_ns: int) -> tuple[Bar, ...]:
    columns = [
        rows["rank"].tolist(),
        (rows[c.START_NS] - origin_ns).tolist(),
        (rows[c.END_NS] - rows[c.START_NS]).tolist(),
        [str(phase) for phase in rows[c.PHASE]],
        ["" if pd.isna(name) else str(name) for name in rows[c.NAME]],
        rows[c.STEP].tolist(),
        [None if pd.isna(count) else int(count) for count in rows[c.BYTES]],
        [bool(value) for value in rows["is_collective"]],
    ]
    return tuple(Bar(*values) for values in zip(*columns, strict=True))
