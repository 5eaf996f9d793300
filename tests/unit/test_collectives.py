"""Matching collectives across ranks, and what of each is waiting; truth computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analyses.arrivals import MARKED, PROFILER
from hpcprof.analyses.collectives import MATCHED_COLUMNS, decomposed, matched
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame
from tests.unit.synthetic_run import spans

pytestmark = pytest.mark.unit


def profiled(rows):
    """Collectives as a profiler saw them: (op, step, bytes, start, end); step None is outside."""
    return spans_frame(
        {
            c.START_NS: [start for *_, start, _ in rows],
            c.END_NS: [end for *_, end in rows],
            c.KIND: c.COLLECTIVE,
            c.NAME: "HorovodAllreduce",
            c.OP: [op for op, *_ in rows],
            c.STEP: [step for _, step, *_ in rows],
            c.BYTES: [size for _, _, size, *_ in rows],
            c.SOURCE: "nsys",
        }
    )


def test_marked_phases_become_one_row_per_rank_and_step_in_int64():
    ranks = {
        1: spans([(c.ALLREDUCE, 0, 10, 20), ("forward", 1, 20, 30), (c.ALLREDUCE, 1, 31, 40)]),
        0: spans([(c.ALLREDUCE, 0, 1012, 1020), (c.ALLREDUCE, 1, 1035, 1040)]),
    }
    found = matched(ranks, MARKED)
    assert tuple(found.rows.columns) == MATCHED_COLUMNS
    assert set(map(str, found.rows.dtypes)) == {"int64"}
    ms = 1_000_000
    assert found.rows.to_numpy().tolist() == [
        [0, 0, 0, 8, 1012 * ms, 1020 * ms],
        [0, 1, 0, 8, 1035 * ms, 1040 * ms],
        [1, 0, 0, 8, 10 * ms, 20 * ms],
        [1, 1, 0, 8, 31 * ms, 40 * ms],
    ]
    assert (len(found), found.dropped, found.ranks) == (2, 0, (0, 1))


def test_only_allreduces_within_steps_are_matched_in_the_order_of_their_starts():
    rows = [
        ("allreduce", 3, 200, 50, 60),
        ("allreduce", 3, 100, 40, 70),
        ("broadcast", 3, 1, 41, 42),
        ("allreduce", None, 9, 1, 2),
    ]
    found = matched({0: profiled(rows), 1: profiled(rows)}, PROFILER)
    assert found.rows.loc[found.rows["rank"] == 0, [c.SEQ, c.BYTES]].to_numpy().tolist() == [
        [0, 100],
        [1, 200],
    ]
    assert matched({0: profiled(rows), 1: profiled(rows)}, MARKED).rows.empty


def test_a_step_in_which_ranks_disagree_is_dropped_whole_and_counted():
    good = [("allreduce", 0, 10, 0, 5)]
    fused = [("allreduce", 1, 30, 10, 20)]
    apart = [("allreduce", 1, 10, 10, 12), ("allreduce", 1, 20, 12, 20)]
    swapped = [("allreduce", 1, 20, 10, 12), ("allreduce", 1, 10, 12, 20)]
    for other in (fused, swapped):
        found = matched({0: profiled(good + apart), 1: profiled(good + other)}, PROFILER)
        assert found.rows[c.STEP].tolist() == [0, 0]
        assert (len(found), found.dropped) == (1, 2)


def test_a_step_that_one_rank_lacks_is_dropped():
    two = [("allreduce", 0, 10, 0, 5), ("allreduce", 1, 10, 10, 15)]
    found = matched({0: profiled(two), 1: profiled(two[:1])}, PROFILER)
    assert (found.rows[c.STEP].tolist(), found.dropped) == ([0, 0], 1)


def test_a_rank_without_any_collective_leaves_nothing_to_match():
    two = [("allreduce", 0, 10, 0, 5), ("allreduce", 1, 10, 10, 15)]
    found = matched({0: profiled(two), 1: profiled([])}, PROFILER)
    assert (len(found), found.dropped, found.ranks) == (0, 2, ())
    nothing = matched({}, PROFILER)
    assert (tuple(nothing.rows.columns), len(nothing)) == (MATCHED_COLUMNS, 0)


def test_unknown_bytes_are_zero_and_still_match():
    rows = [("allreduce", 0, None, 0, 5)]
    found = matched({0: profiled(rows), 1: profiled(rows)}, PROFILER)
    assert found.rows[c.BYTES].tolist() == [0, 0]


def test_the_last_to_arrive_waits_for_nobody():
    # both leave at 30 of their own clocks' counting; rank 1's clock is 1000 ahead
    ranks = {
        0: profiled([("allreduce", 0, 8, 10, 30)]),
        1: profiled([("allreduce", 0, 8, 1025, 1030)]),
    }
    parts = decomposed(matched(ranks, PROFILER).rows)
    assert parts["transfer_ns"].tolist() == [5, 5]
    assert parts["wait_ns"].tolist() == [15, 0]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=3, max_size=3),
        min_size=2,
        max_size=5,
    )
)
def test_wait_and_transfer_are_the_duration_whatever_the_clocks(ranks):
    tables = {
        rank: profiled(
            [("allreduce", k, 8, start, start + length) for k, (start, length) in enumerate(calls)]
        )
        for rank, calls in enumerate(ranks)
    }
    parts = decomposed(matched(tables, PROFILER).rows)
    duration = (parts[c.END_NS] - parts[c.START_NS]).to_numpy()
    assert len(parts) == 3 * len(ranks)
    assert (parts["wait_ns"] >= 0).all()
    assert (parts["transfer_ns"].to_numpy() <= duration).all()
    assert np.array_equal((parts["wait_ns"] + parts["transfer_ns"]).to_numpy(), duration)
    assert (parts.groupby(c.STEP)["wait_ns"].min() == 0).all()
