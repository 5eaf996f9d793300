"""By how much did a profiler lengthen the steps that it recorded?

Asked for each that works in a window of steps: nsys, the naming of operations, tf.profiler.

1. The length of a step on a rank is the time from the end of the step before to its own end, on the
   rank's own clock.
2. Inside: the steps that the profiler recorded on every rank it recorded at all. Outside: equally
   many steps just before and just after, that it recorded on none, nor did another (``apart``).
   Warm-up and steps during which a profiler was at work (busy_steps.py) count for neither.
3. Per rank: median inside over the mean of the two medians outside, minus 1. The mean of both sides
   takes out what changes steadily over the run (a schedule, a warming disk). Over the ranks the
   median: they wait for each other, so that all see much the same.
4. Interval: block bootstrap over steps (resampling.py). ``drift_frac`` says how far the two sides
   differ from each other: what changes within the window is no larger than that, if it is steady.

What makes it wrong: something else that happens in the window and neither before nor after. What
the profiler costs all the time, also when it does not record, is on both sides and not seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from hpcprof.analyses.arrivals import follow_one_another
from hpcprof.analyses.busy_steps import Int64s, covered_times, overlapping
from hpcprof.analyses.resampling import DRAWS, block_draws
from hpcprof.analyses.step_matrix import warm_up_steps
from hpcprof.trace import columns as c

Vector = npt.NDArray[np.float64]

KINDS_READ = [c.STEP_KIND, c.BUSY]
COLUMNS_READ = [c.START_NS, c.END_NS, c.KIND, c.STEP]


@dataclass(frozen=True)
class Asked:
    """Of what the overhead is asked: how a reason names it, and how few steps can tell it.

    ``did``: "nsys recorded"; ``everywhere``: the reason where it did so in nearly every step.
    """

    did: str
    everywhere: str
    min_inside: int
    min_each_side: int


NSYS = Asked(
    did="nsys recorded",
    everywhere="nsys recorded nearly every step; with a window (profile: {steps: 20-59}) it can be",
    min_inside=20,
    min_each_side=10,  # 20 outside; a window that begins at step 20 leaves no more before it
)
# their windows are steps 10-29 and 30-39 if nobody says otherwise, and what is before the first of
# them is partly warm-up: the interval says how little that is
OPERATIONS = Asked(
    did="operations were named",
    everywhere="operations were named in nearly every step; with a shorter window it can be",
    min_inside=10,
    min_each_side=4,
)
TF_PROFILER = Asked(
    did="tf.profiler recorded",
    everywhere="tf.profiler recorded nearly every step; with a shorter window it can be",
    min_inside=8,
    min_each_side=4,
)
# of a long window so many steps, and twice as many as the window has on each side of it: bounded,
# whatever the length of the run and the number of ranks
MOST_INSIDE = 2_000
ALIKE = " that are like them otherwise"
NAN = float("nan")


@dataclass(frozen=True)
class ProfilerOverhead:
    """``overhead_frac`` of a step; nan unless ``status`` is ``ok``.

    Else ``insufficient`` or ``not_collected`` with a ``reason``; "" when no profiler recorded.
    ``first_step`` to ``last_step`` were recorded on every profiled rank, ``inside`` of them
    compared with ``each_side`` before and as many after. ``by_rank``: of each profiled rank.
    """

    status: str = "not_collected"
    reason: str = ""
    overhead_frac: float = NAN
    overhead_frac_ci: tuple[float, float] = (NAN, NAN)
    drift_frac: float = NAN
    first_step: int | None = None
    last_step: int | None = None
    inside: int = 0
    each_side: int = 0
    by_rank: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankSteps:
    """Of one rank: length of each step (ns, by step), and the steps its profiler disturbed."""

    lengths: pd.Series[int]
    busy: Int64s


@dataclass(frozen=True)
class _Parts:
    """Steps to compare, each ascending."""

    before: Int64s
    inside: Int64s
    after: Int64s


def rank_steps(spans: pd.DataFrame, window: tuple[int, int]) -> RankSteps:
    """From the spans of one rank of ``KINDS_READ``; a step after a gap has no length.

    ``window``: from the first to the last step that was recorded on any rank; steps far from it
    are left out.
    """
    rows = spans[(spans[c.KIND] == c.STEP_KIND) & spans[c.STEP].notna()]
    ends = rows.groupby(rows[c.STEP].astype("int64"), sort=True)[c.END_NS].max()
    busy = covered_times(spans[spans[c.KIND] == c.BUSY])
    first = int(rows[c.START_NS].min()) if len(rows) else 0
    follows = follow_one_another(ends.index.to_numpy(dtype=np.int64), rows)
    lengths = ends.diff()[follows].astype("int64")
    disturbed = overlapping(ends, first, busy)
    usable = lengths[~lengths.index.isin(disturbed)]
    return RankSteps(_near(usable, *window), disturbed)


def _near(lengths: pd.Series[int], first: int, last: int) -> pd.Series[int]:
    """Steps within the window, not more than MOST_INSIDE or so, and those next to it."""
    steps = lengths.index.to_numpy(np.int64)
    inside = lengths[(steps >= first) & (steps <= last)]
    if len(inside) > MOST_INSIDE:
        # the same of all ranks, and not at a fixed distance, as checkpoints are
        scattered = (inside.index.to_numpy(np.int64) * 2_654_435_761) % 2**32
        inside = inside[scattered < 2**32 * MOST_INSIDE / len(inside)]
    around = 2 * max(NSYS.min_inside, len(inside))
    near: pd.Series[int] = pd.concat(
        [lengths[steps < first].tail(around), inside, lengths[steps > last].head(around)]
    )
    return near


def profiler_overhead(
    ranks: Mapping[int, RankSteps],
    recorded: Mapping[int, tuple[int, int]],
    asked: Asked = NSYS,
    apart: Collection[int] = (),
) -> ProfilerOverhead:
    """Compare. ``recorded``: first and last step that the profiler recorded, of each profiled rank;
    ``ranks`` has all of these. ``apart``: steps outside that are not like the others.
    """
    if not recorded:
        return ProfilerOverhead()
    first = max(begin for begin, _ in recorded.values())
    last = min(end for _, end in recorded.values())
    tables = {rank: ranks[rank].lengths for rank in sorted(recorded)}
    lengths = pd.concat(tables, axis="columns", join="inner").sort_index()
    busy = np.concatenate([ranks[rank].busy for rank in tables])  # of any rank
    lengths = lengths[~lengths.index.isin(busy)]
    parts = _parts(lengths, recorded, (first, last), apart)
    left = parts.before.size + parts.after.size
    if left < min(asked.min_each_side, parts.inside.size) and not apart:
        return ProfilerOverhead(reason=asked.everywhere, first_step=first, last_step=last)
    side = min(parts.before.size, parts.after.size, parts.inside.size)
    if parts.inside.size < asked.min_inside or side < asked.min_each_side:
        return ProfilerOverhead(
            "insufficient",
            f"{parts.inside.size} steps in which {asked.did}, {parts.before.size} before and "
            f"{parts.after.size} after them{ALIKE if apart else ''} can be compared; at least "
            f"{asked.min_inside}, and "
            f"{asked.min_each_side} on each side, are needed",
            first_step=first,
            last_step=last,
        )
    parts = _Parts(parts.before[-side:], parts.inside, parts.after[:side])
    return _compared(lengths, parts, first, last)


def _parts(
    lengths: pd.DataFrame,
    recorded: Mapping[int, tuple[int, int]],
    window: tuple[int, int],
    apart: Collection[int],
) -> _Parts:
    steps = lengths.index.to_numpy(np.int64)
    earliest = min(begin for begin, _ in recorded.values())
    latest = max(end for _, end in recorded.values())
    outside = steps[((steps < earliest) | (steps > latest)) & ~np.isin(steps, list(apart))]
    if outside.size:
        typical = lengths.loc[outside].median(axis="columns").to_numpy(np.float64)
        outside = outside[warm_up_steps(typical) :]
    inside = steps[(steps >= window[0]) & (steps <= window[1])]
    return _Parts(outside[outside < earliest], inside, outside[outside > latest])


def _compared(lengths: pd.DataFrame, parts: _Parts, first: int, last: int) -> ProfilerOverhead:
    by_rank, drifts = {}, []
    draws = np.empty((DRAWS, lengths.shape[1]))
    chosen = [
        block_draws(steps.size, seed)
        for seed, steps in enumerate((parts.before, parts.inside, parts.after))
    ]
    for column, rank in enumerate(lengths.columns):
        before, inside, after = (
            lengths.loc[steps, rank].to_numpy(np.float64)
            for steps in (parts.before, parts.inside, parts.after)
        )
        by_rank[int(rank)] = float(_ratio(before, inside, after))
        drifts.append(float(np.median(after) / np.median(before) - 1))
        drawn = [values[rows] for values, rows in zip((before, inside, after), chosen, strict=True)]
        draws[:, column] = _ratio(*drawn)
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return ProfilerOverhead(
        status="ok",
        overhead_frac=float(np.median(list(by_rank.values()))),
        overhead_frac_ci=(float(low), float(high)),
        drift_frac=float(np.median(drifts)),
        first_step=first,
        last_step=last,
        inside=parts.inside.size,
        each_side=parts.before.size,
        by_rank=by_rank,
    )


def _ratio(before: Vector, inside: Vector, after: Vector) -> Vector:
    """Over the last axis: median inside against the mean of the medians outside, minus 1."""
    outside = (np.median(before, axis=-1) + np.median(after, axis=-1)) / 2
    return np.asarray(np.median(inside, axis=-1) / outside - 1)
