"""Node clocks from beacons: the offset is found within its bound, and a set clock is noticed."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.align import NodeClock, apply, fit_nodes, job_start
from hpcprof.align.wall_clock import NTP_ERROR_NS, UNBRACKETED_ERROR_NS
from hpcprof.errors import InputError
from hpcprof.trace import (
    RankInfo,
    Trace,
    anchors_frame,
    check_spans,
    empty_counters,
    spans_frame,
)

pytestmark = pytest.mark.unit

OFFSET_NS = 1_764_547_200_123_456_789


def beacons(offset: int, times: list[int], widths: list[int], at: float = 0.5) -> pd.DataFrame:
    """Beacons of a node whose realtime is monotonic + offset; read at a fraction of the bracket."""
    return anchors_frame(
        {
            "seq": list(range(len(times))),
            "before_ns": times,
            "after_ns": [t + w for t, w in zip(times, widths, strict=True)],
            "realtime_ns": [t + int(w * at) + offset for t, w in zip(times, widths, strict=True)],
        }
    )


def test_one_node_is_tight_with_the_intersection_of_the_brackets_as_bound() -> None:
    early = beacons(OFFSET_NS, [100, 10_000], [800, 2_000], at=0.0)
    late = beacons(OFFSET_NS, [50, 5_000], [1_000, 400], at=1.0)
    clock = fit_nodes({"node1": {0: early, 1: late}})["node1"]
    assert (clock.status, clock.warnings, clock.samples) == ("tight", (), 4)
    # read at the very edges: the intervals touch in one point only
    assert (clock.offset_ns, clock.bound_ns, clock.residual_ns) == (OFFSET_NS, 1, 0)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(-(10**18), 2 * 10**18),
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**7), st.floats(0, 1)), min_size=1),
)
def test_the_offset_lies_within_its_bound(offset: int, reads: list) -> None:
    tables = {
        rank: beacons(offset, [time], [width], at) for rank, (time, width, at) in enumerate(reads)
    }
    clock = fit_nodes({"node1": tables})["node1"]
    assert clock.bound_ns is not None
    assert abs(clock.offset_ns - offset) <= clock.bound_ns
    assert clock.bound_ns <= max(min(width for _, width, _ in reads) // 2 + 1, 1)


def test_several_nodes_are_only_as_good_as_ntp() -> None:
    clocks = fit_nodes(
        {
            "node1": {0: beacons(OFFSET_NS, [100], [800])},
            "node2": {1: beacons(OFFSET_NS + 5_000_000, [100], [600])},
        }
    )
    assert [clock.status for clock in clocks.values()] == ["utc-only", "utc-only"]
    assert clocks["node2"].offset_ns - clocks["node1"].offset_ns == 5_000_000
    assert clocks["node1"].bound_ns == NTP_ERROR_NS + 400


def test_a_clock_set_during_the_job_is_a_warning_and_widens_the_bound() -> None:
    before = beacons(OFFSET_NS, [100, 10**9], [800, 800])
    after = beacons(OFFSET_NS + 250_000_000, [2 * 10**9], [800])
    clock = fit_nodes({"node1": {0: before, 1: after}})["node1"]
    assert clock.offset_ns == OFFSET_NS
    assert clock.residual_ns == clock.bound_ns == 250_000_000
    assert "node node1: its ranks read the wall clock 249.999 ms apart" in clock.warnings[0]
    assert "times within the node are not affected" in clock.warnings[0]


def test_pairs_without_a_bracket_count_only_where_there_is_no_beacon() -> None:
    pair = anchors_frame(
        {"seq": [-1], "before_ns": [100], "after_ns": [100], "realtime_ns": [100 + OFFSET_NS]}
    )
    alone = fit_nodes({"node1": {0: pair}})["node1"]
    assert (alone.offset_ns, alone.bound_ns) == (OFFSET_NS, UNBRACKETED_ERROR_NS)
    both = fit_nodes({"node1": {0: pair, 1: beacons(OFFSET_NS + 50, [5], [100])}})["node1"]
    assert (both.offset_ns, both.bound_ns, both.samples) == (OFFSET_NS + 50, 50, 1)


def test_node_without_anchors_is_uncalibrated_and_cannot_be_applied() -> None:
    nothing = beacons(0, [], [])
    clock = fit_nodes({"node1": {0: nothing}, "node2": {}})["node1"]
    assert (clock.status, clock.bound_ns) == ("uncalibrated", None)
    with pytest.raises(InputError, match="rank 5: nothing ties the clock of node node1"):
        apply(small_trace(), clock, 0)


def test_the_job_starts_at_its_first_anchor() -> None:
    anchors = {
        "node1": {0: beacons(OFFSET_NS, [900, 5_000], [2, 2])},
        "node2": {1: beacons(OFFSET_NS + 700, [150], [2])},
    }
    assert job_start(fit_nodes(anchors), anchors) == OFFSET_NS + 850
    assert job_start({}, {}) == 0


def small_trace() -> Trace:
    spans = spans_frame(
        {
            "start_ns": [1_000, 2_001],
            "end_ns": [1_500, 2_003],
            "kind": "step",
            "name": "step",
            "source": "hpcprof",
        }
    )
    counters = empty_counters()
    return Trace(RankInfo(5, 0, "node1", 6), spans, counters)


def test_applied_times_are_exact_integers_since_t0() -> None:
    clock = NodeClock("node1", OFFSET_NS, 0, 0, 1, "wall clock", "tight")
    trace = small_trace()
    moved = apply(trace, clock, OFFSET_NS + 1_100)
    assert moved.spans["start_ns"].tolist() == [-100, 901]
    assert moved.spans["end_ns"].tolist() == [400, 903]
    assert trace.spans["start_ns"].tolist() == [1_000, 2_001]
    check_spans(moved.spans)
