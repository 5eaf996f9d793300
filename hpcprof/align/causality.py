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
from hpcprof.align.offset_curve import Floats, Int64s
from hpcprof.trace.columns import END_NS, SEQ, START_NS, STEP

RANK = "rank"
_KEY = [STEP, SEQ]
_NODE, _COLLECTIVE = "node", "collective"
_NEVER = int(np.iinfo(np.int64).max) // 2


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
    """``violations`` of tables as ``per_node`` makes them. Linear in nodes times collectives."""
    nodes = sorted(node for node, clock in clocks.items() if clock.bound_ns is not None)
    widest = {node: _widest(tables[node], clocks[node]) for node in nodes if node in tables}
    collectives = max((int(rows.max()) + 1 for rows, *_ in widest.values() if len(rows)), default=0)
    first_ends = _TwoSmallest(collectives)
    last_starts = _TwoSmallest(collectives)  # of negative starts
    for rows, starts, ends in widest.values():
        first_ends.add(rows, ends)
        last_starts.add(rows, -starts)
    counts = dict.fromkeys(nodes, 0)
    for node, (rows, starts, ends) in widest.items():
        is_broken = (starts > first_ends.of_others(rows, ends)) | (
            ends < -last_starts.of_others(rows, -starts)
        )
        counts[node] = int(is_broken.sum())
    return counts


def _widest(table: pd.DataFrame, clock: NodeClock) -> tuple[Int64s, Int64s, Int64s]:
    """Numbers of the node's collectives, their earliest starts and latest ends on the job's clock.

    As far apart as the clock's bound allows.
    """
    starts, ends = (table[name].to_numpy() for name in (START_NS, END_NS))
    return (
        table.index.to_numpy(),
        clock.to_job(starts) - clock.bound_at(starts),
        clock.to_job(ends) + clock.bound_at(ends),
    )


class _TwoSmallest:
    """Per collective the smallest and the second-smallest value that any node has.

    Enough to know the smallest of all other nodes, for each of them.
    """

    def __init__(self, collectives: int) -> None:
        self.smallest = np.full(collectives, _NEVER)
        self.second = np.full(collectives, _NEVER)

    def add(self, rows: Int64s, values: Int64s) -> None:
        """Take in one node's values; ``rows`` holds no collective twice."""
        smallest = self.smallest[rows]
        self.second[rows] = np.minimum(self.second[rows], np.maximum(smallest, values))
        self.smallest[rows] = np.minimum(smallest, values)

    def of_others(self, rows: Int64s, values: Int64s) -> Int64s:
        """The smallest value of the nodes but the one whose ``values`` these are."""
        smallest = self.smallest[rows]
        others: Int64s = np.where(values == smallest, self.second[rows], smallest)
        return others
