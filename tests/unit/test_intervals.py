"""Interval arithmetic against a brute-force oracle on small integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analyses import intervals

pytestmark = pytest.mark.unit

_pairs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=8,
)


def _arrays(pairs):
    starts = np.array([a for a, _ in pairs], dtype=np.int64)
    return starts, np.array([b for _, b in pairs], dtype=np.int64)


def _points(pairs):
    return {t for a, b in pairs for t in range(a, b)}


@given(_pairs)
def test_union_covers_the_same_points_and_is_disjoint(pairs):
    starts, ends = intervals.union(*_arrays(pairs))
    assert _points(zip(starts, ends, strict=True)) == _points(pairs)
    assert intervals.total((starts, ends)) == len(_points(pairs))
    assert np.all(starts[1:] > ends[:-1])


@given(_pairs, _pairs)
def test_subtract_leaves_the_points_that_the_others_do_not_cover(pairs, others):
    left = intervals.subtract(intervals.union(*_arrays(pairs)), intervals.union(*_arrays(others)))
    assert _points(zip(*left, strict=True)) == _points(pairs) - _points(others)


@given(_pairs, st.integers(0, 50), st.integers(0, 20))
def test_overlap_counts_the_points_inside_the_window(pairs, start, length):
    merged = intervals.union(*_arrays(pairs))
    window = (np.array([start]), np.array([start + length]))
    inside = intervals.overlap(merged, *window)
    assert inside[0] == len(_points(pairs) & set(range(start, start + length)))
