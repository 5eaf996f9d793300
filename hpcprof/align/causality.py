"""What follows from "a collective ends on no rank before it has started on all of them".

Hard bounds of an offset from such constraints, and a count of collectives that a set of clocks
contradicts. Never moves an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.align.drift import RHO
from hpcprof.align.node_clock import NodeClock
from hpcprof.align.offset_curve import Floats
from hpcprof.trace.columns import END_NS, SEQ, START_NS, STEP

RANK = "rank"
_KEY = [STEP, SEQ]
_NODE, _COLLECTIVE = "node", "collective"


class Limits(NamedTuple):
    """Moments at which an offset was at most (``above``), and at least (``below``), some value."""

    above_times: Floats
    above: Floats
    below_times: Floats
    below: Floats

    def mirrored(self) -> Limits:
        """The limits of the negative offset."""
        return Limits(self.below_times, -self.below, self.above_times, -self.above)


def per_node(collectives: pd.DataFrame, node_of: Mapping[int, str]) -> dict[str, pd.DataFrame]:
    """Node -> last start and first end of every collective on it, on its clock.

    Rows are indexed by a number that a collective (step, seq) has on all nodes. Ranks without a
    node are left out, and so is what one rank has twice: which is meant is not known.
    """
    once = collectives.drop_duplicates([RANK, *_KEY], keep=False)
    nodes = once[RANK].map(dict(node_of)).rename(_NODE)
    numbers = once.groupby(_KEY).ngroup()
    numbers = numbers[nodes.notna() & (numbers >= 0)].rename(_COLLECTIVE)  # -1: no step
    rows = once.loc[numbers.index]
    ends = rows.groupby([nodes.loc[numbers.index], numbers]).agg({START_NS: "max", END_NS: "min"})
    return {str(node): part.droplevel(_NODE) for node, part in ends.groupby(level=_NODE)}


def intervals_at(moments: Floats, limits: Limits, largest_rate: float) -> tuple[Floats, Floats]:
    """Lowest and highest values the offset can have had at ``moments``.

    Assumes that its rate stays within +-``largest_rate`` and that any two of its rates differ by
    RHO at most. lowest > highest: the limits contradict each other.
    """
    highest = _highest(moments, limits, largest_rate)
    return -_highest(moments, limits.mirrored(), largest_rate), highest


def rates(limits: Limits, largest_rate: float) -> tuple[float, float]:
    """(lowest, highest) rate the offset can have had at any moment; assumptions as above."""
    return -_highest_rate(limits.mirrored(), largest_rate), _highest_rate(limits, largest_rate)


def _highest(moments: Floats, limits: Limits, largest_rate: float) -> Floats:
    """Every line below is a true statement about the offset; the smallest counts.

    Axes: moment, upper limit, another limit.
    """
    at, times, values = moments[:, None], limits.above_times, limits.above
    found = [(values + largest_rate * np.abs(at - times)).min(axis=1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        # between two upper limits: on their chord, but for what the rate may change between them
        before, after = (at - times)[:, :, None], (times - at)[:, None, :]
        length = before + after
        chord = (values[:, None] * after + values[None, :] * before) / length
        bent = chord + RHO * before * after / length
        found.append(np.where((before > 0) & (after > 0), bent, np.inf).min(axis=(1, 2)))
        # from a lower limit through an upper one and on: the mean rate there was no steeper
        rise = values[:, None] - limits.below[None, :]
        for direction in (1.0, -1.0):
            run = direction * (times[:, None] - limits.below_times[None, :])
            steepest = np.where(run > 0, rise / run + RHO, np.inf).min(axis=1)
            ahead = direction * (at - times)
            found.append(np.where(ahead > 0, values + steepest * ahead, np.inf).min(axis=1))
    highest: Floats = np.min(found, axis=0)
    return highest


def _highest_rate(limits: Limits, largest_rate: float) -> float:
    run = limits.above_times[:, None] - limits.below_times[None, :]
    rise = limits.above[:, None] - limits.below[None, :]
    is_used = run > 0
    if not is_used.any():
        return largest_rate
    return min(largest_rate, float((rise[is_used] / run[is_used]).min()) + RHO)


def violations(
    collectives: pd.DataFrame, clocks: Mapping[str, NodeClock], node_of: Mapping[int, str]
) -> dict[str, int]:
    """Per node, in how many collectives its start or end contradicts that of another node.

    A contradiction: a start on one node after an end on another, by more than both bounds. Both
    nodes are counted. Nodes without a known clock are left out.
    """
    return contradicted(per_node(collectives, node_of), clocks)


def contradicted(
    tables: Mapping[str, pd.DataFrame], clocks: Mapping[str, NodeClock]
) -> dict[str, int]:
    """``violations`` of tables as ``per_node`` makes them."""
    nodes = sorted(node for node, clock in clocks.items() if clock.bound_ns is not None)
    collectives = max((int(table.index.max()) + 1 for table in tables.values()), default=0)
    never = np.iinfo(np.int64).max // 2
    start, end = (
        np.full((collectives, len(nodes)), -never),
        np.full((collectives, len(nodes)), never),
    )
    for index, node in enumerate(nodes):
        if node in tables:
            clock, row = clocks[node], tables[node].index
            starts, ends = (tables[node][name].to_numpy() for name in (START_NS, END_NS))
            start[row, index] = clock.to_job(starts) - clock.bound_at(starts)
            end[row, index] = clock.to_job(ends) + clock.bound_at(ends)
    counts = {}
    for index, node in enumerate(nodes):
        others = np.arange(len(nodes)) != index
        earliest_end = end[:, others].min(axis=1, initial=never)
        latest_start = start[:, others].max(axis=1, initial=-never)
        is_broken = (start[:, index] > earliest_end) | (latest_start > end[:, index])
        counts[node] = int(is_broken.sum())
    return counts
