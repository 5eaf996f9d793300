"""Interval arithmetic on int64 nanoseconds, vectorised.

A set of intervals is a pair of arrays (starts, ends) of equal length; a *union* is sorted,
disjoint and has no empty member.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Union = tuple[Times, Times]


def union(starts: Times, ends: Times) -> Union:
    """Merge overlapping and touching intervals; empty ones vanish. O(n log n)."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if starts.size == 0:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return starts[opens], reach[closes]


def total(intervals: Union) -> int:
    """Length of a union in ns."""
    starts, ends = intervals
    return int((ends - starts).sum())


def covered_until(intervals: Union, moments: Times) -> Times:
    """For each moment, how much of the union lies before it, in ns."""
    starts, ends = intervals
    if starts.size == 0:
        return np.zeros_like(moments)
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, moments, side="right")
    # the interval that began last may reach beyond the moment
    last_end = ends[np.maximum(index - 1, 0)]
    beyond = np.where(index > 0, np.maximum(last_end - moments, 0), 0)
    result: Times = before[index] - beyond
    return result


def overlap(intervals: Union, window_starts: Times, window_ends: Times) -> Times:
    """How much of the union lies inside each window, in ns; windows may overlap each other."""
    return covered_until(intervals, window_ends) - covered_until(intervals, window_starts)


def subtract(intervals: Union, others: Union) -> Union:
    """The part of the first union that the second does not cover."""
    starts, ends = intervals
    holes_start, holes_end = others
    if starts.size == 0 or holes_start.size == 0:
        return intervals
    # every boundary cuts; a piece stays when its middle lies in the first and not in the second
    cuts = np.unique(np.concatenate((starts, ends, holes_start, holes_end)))
    left, right = cuts[:-1], cuts[1:]
    stay = _contains(intervals, left) & ~_contains(others, left)
    return union(left[stay], right[stay])


def _contains(intervals: Union, moments: Times) -> npt.NDArray[np.bool_]:
    starts, ends = intervals
    index = np.searchsorted(starts, moments, side="right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (moments < ends[np.maximum(index, 0)])
    return inside
