"""Aligns a node by the ends of symmetric collectives that the training makes anyway.

1. A node's end of a collective is the first end of its ranks: one-sided jitter goes away. The
   difference to the base node's end is a sample of the offset; starts never are, they would take
   a straggler for a clock.
2. Medians of ~40 blocks, Theil-Sen through them: the line.
3. An end on one node cannot come before a start on the other: limits of the offset at that
   moment. What they leave at each of the knots, whatever the drift was, is the guaranteed
   interval; the line is clipped into it. Of each block only the tightest limits are used.
4. Limits that contradict each other: the collective that the line contradicts most is dropped.

Limits go straight from the base node to each node. A path over a third node could be narrower only
where ends on two nodes lie further apart than the shortest collective takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.align.causality import Limits, intervals_at, rates
from hpcprof.align.drift import MAX_DRIFT, RHO, RHO_PPB, theil_sen
from hpcprof.align.node_clock import BOUNDED, NodeClock
from hpcprof.align.offset_curve import Floats, Int64s, OffsetCurve
from hpcprof.errors import InputError
from hpcprof.trace.columns import END_NS, START_NS

METHOD = "collective ends"
FEWEST = 5  # collectives on both nodes; a median of fewer says little
_BLOCKS = 40
_PER_BLOCK = 5
# collectives dropped as mismatched; more of them and it is not the collectives that are wrong
_MOST_DROPPED_FRAC, _MOST_DROPPED = 0.05, 50


class _Line(NamedTuple):
    """offset(t) = base_ns + value + slope (t - origin_ns); the integers keep it exact."""

    origin_ns: int
    base_ns: int
    slope: float
    value: float
    residual_ns: float

    def off(self, times: Int64s, offsets: Int64s) -> Floats:
        """What is left of offsets at times when the line is taken off."""
        x = (times - self.origin_ns).astype(np.float64)
        return (offsets - self.base_ns).astype(np.float64) - self.value - self.slope * x

    def at(self, times: Int64s, beside: Floats) -> Int64s:
        """Offsets at times, ``beside`` the line."""
        x = (times - self.origin_ns).astype(np.float64)
        return self.base_ns + np.floor(self.value + self.slope * x + beside + 0.5).astype(np.int64)


class _Ends(NamedTuple):
    """Per collective: last start and first end, here (own clock) and at the base (reference's).

    The base's are moved apart by its own bound, so that limits made of them are true.
    """

    start: Int64s
    end: Int64s
    base_start: Int64s
    base_end: Int64s
    base_middle: Int64s


def fit(
    node: str, tables: Mapping[str, pd.DataFrame], base: NodeClock, run_ns: tuple[int, int]
) -> NodeClock:
    """The node's clock against the reference node's CLOCK_MONOTONIC.

    ``tables`` is ``causality.per_node``; ``base`` a node that is aligned already (the reference
    itself, offset 0); ``run_ns`` the run on the node's clock. Raises InputError when there are too
    few collectives or they contradict each other too often.
    """
    there = tables.get(base.node, tables[node].iloc[:0])
    ends = _ends(tables[node], there, base)
    if len(ends.end) < FEWEST:
        raise InputError(
            f"node {node}: {len(ends.end)} collectives in common with node {base.node}; "
            f"{FEWEST} are needed to compare their clocks"
        )
    line = _line(ends)
    curve, dropped = _clipped(node, ends, line)
    return NodeClock(
        node=node,
        offset_ns=int(curve.offsets_ns[0]),
        drift_ppb=-round(line.slope * 1e9),
        residual_ns=round(line.residual_ns),
        bound_ns=curve.largest_bound_ns(*run_ns),
        method=METHOD,
        status=BOUNDED,
        samples=len(ends.end) - len(dropped),
        warnings=(_dropped_warning(node, dropped),) if dropped else (),
        rho_ppb=RHO_PPB,
        curve=curve,
    )


def _ends(here: pd.DataFrame, there: pd.DataFrame, base: NodeClock) -> _Ends:
    both = here.join(there.add_suffix("_base"), how="inner").sort_values(END_NS)
    its_start, its_end = (both[f"{name}_base"].to_numpy() for name in (START_NS, END_NS))
    middle = base.to_job(its_end)
    return _Ends(
        start=both[START_NS].to_numpy(),
        end=both[END_NS].to_numpy(),
        base_start=base.to_job(its_start) - base.bound_at(its_start),
        base_end=middle + base.bound_at(its_end),
        base_middle=middle,
    )


def _line(ends: _Ends) -> _Line:
    differences = ends.base_middle - ends.end
    base = int(np.sort(differences)[len(differences) // 2])
    origin = int(ends.end[0])
    x, y = (ends.end - origin).astype(np.float64), (differences - base).astype(np.float64)
    count = min(_BLOCKS, max(len(x) // _PER_BLOCK, 2))
    blocks = np.array_split(np.arange(len(x)), count)
    middles = np.array([[np.median(x[block]), np.median(y[block])] for block in blocks])
    slope, value = theil_sen(middles[:, 0], middles[:, 1])
    slope = float(np.clip(slope, -MAX_DRIFT, MAX_DRIFT))
    value = float(np.median(middles[:, 1] - slope * middles[:, 0]))
    left = np.abs(middles[:, 1] - slope * middles[:, 0] - value)
    return _Line(origin, base, slope, value, float(left.max()))


def _clipped(node: str, ends: _Ends, line: _Line) -> tuple[OffsetCurve, list[float]]:
    """The line moved into the guaranteed interval at each knot; the rest as ``_guaranteed``."""
    knots = np.unique(np.linspace(0, int(np.ptp(ends.end)), _BLOCKS + 1).astype(np.int64))
    limits, low, high, dropped = _guaranteed(node, ends, line, knots)
    beside = np.clip(0.0, low, high)
    times = knots + ends.end.min()
    slowest, fastest = rates(limits, MAX_DRIFT + abs(line.slope))
    curve = OffsetCurve(
        times_ns=times,
        offsets_ns=line.at(times, beside),
        widths_ns=np.ceil(np.maximum(high - beside, beside - low)).astype(np.int64) + 1,
        slope=line.slope,
        growth_inside=RHO,
        growth_outside=max(fastest, -slowest, RHO),
        jumps_ns=np.zeros(len(times) - 1, dtype=np.int64),
    )
    return curve, dropped


def _guaranteed(
    node: str, ends: _Ends, line: _Line, knots: Int64s
) -> tuple[Limits, Floats, Floats, list[float]]:
    """Limits, the interval beside the line at each knot, and by how much dropped ones broke it."""
    largest_rate = MAX_DRIFT + abs(line.slope)
    above = line.off(ends.start, ends.base_end - ends.start)
    below = line.off(ends.end, ends.base_start - ends.end)
    origin = int(ends.end.min())
    above_times = (ends.start - origin).astype(np.float64)
    below_times = (ends.end - origin).astype(np.float64)
    kept = np.arange(len(above))
    dropped: list[float] = []
    while True:
        blocks = np.array_split(kept, min(_BLOCKS, len(kept)))
        up = np.array([block[np.argmin(above[block])] for block in blocks])
        down = np.array([block[np.argmax(below[block])] for block in blocks])
        limits = Limits(above_times[up], above[up], below_times[down], below[down])
        low, high = intervals_at(knots.astype(np.float64), limits, largest_rate)
        if (low <= high).all():
            return limits, low, high, dropped
        broken = np.maximum(-above[kept], below[kept])
        worst = int(np.argmax(broken))
        dropped.append(float(broken[worst]))
        if len(dropped) > min(max(_MOST_DROPPED_FRAC * len(above), 1), _MOST_DROPPED):
            raise InputError(
                f"node {node}: the starts and ends of its collectives contradict those of the "
                f"reference in more than {len(dropped) - 1} of {len(above)} collectives, by up to "
                f"{max(dropped) / 1e6:.3f} ms: its clock was set, or collectives are mismatched. "
                "They are not used to compare its clock."
            )
        kept = np.delete(kept, worst)


def _dropped_warning(node: str, dropped: list[float]) -> str:
    return (
        f"node {node}: {len(dropped)} collectives end before they have started elsewhere, by up "
        f"to {max(dropped) / 1e6:.3f} ms; left out of the comparison of clocks"
    )
