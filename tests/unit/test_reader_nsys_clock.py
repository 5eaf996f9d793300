"""Times of a report on the node's clock: recovered within the bound that is claimed."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.readers.nsys_clock import UTC_ERROR_NS, place
from hpcprof.readers.nsys_database import NULL
from hpcprof.trace import anchors_frame, check_spans, spans_frame

pytestmark = pytest.mark.unit

OFFSET = 1_531_590_561_375
SECOND = 10**9
NO_ANCHORS = anchors_frame({"seq": [], "before_ns": [], "after_ns": [], "realtime_ns": []})


def marks(beacons: list[tuple[int, int, int]], offset_at=lambda _t: OFFSET) -> pd.DataFrame:
    """Marks of beacons (export time, ns from reading the clock to the mark, ns to the next)."""
    rows = []
    for seq, (time, before, after) in enumerate(beacons):
        mono = time - before + offset_at(time)
        mono_after = time + after + offset_at(time)
        rows.append((time, seq, mono, mono + 10**18))
        rows.append((time + after + 30, seq, mono_after, NULL))
    frame = pd.DataFrame(rows, columns=["time_ns", "seq", "monotonic_ns", "realtime_ns"])
    return frame.astype("int64")


@settings(max_examples=40, deadline=None)
@given(
    st.integers(-(2**60), 2**60),
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(0, 10**6), st.integers(0, 10**6)),
        min_size=1,
        max_size=20,
    ),
)
def test_offset_is_recovered_within_its_bound(offset: int, beacons: list) -> None:
    got = place(marks(beacons, lambda _t: offset), NO_ANCHORS, None)
    assert got is not None and not got.is_guess
    assert got.drift_ppb == 0
    assert abs(got.offset_ns - offset) <= got.bound_ns
    narrowest = min(before + after for _, before, after in beacons)
    assert got.bound_ns <= narrowest // 2 + 1


def test_a_clock_at_another_rate_is_fitted_by_a_line() -> None:
    drift_ppb = 20_000  # 20 ppm: 12 ms in ten minutes

    def offset_at(time: int) -> int:
        return OFFSET + time * drift_ppb // SECOND

    times = [seq * 10 * SECOND for seq in range(60)]
    slow = {7: 40_000_000, 33: 9_000_000}  # beacons of a preempted process
    beacons = [(time, 5_000, slow.get(i, 8_000)) for i, time in enumerate(times)]
    got = place(marks(beacons, offset_at), NO_ANCHORS, None)
    assert got is not None
    assert abs(got.drift_ppb - drift_ppb) < 20
    assert got.bound_ns < 20_000
    spans = spans_frame(
        {
            "start_ns": times,
            "end_ns": [time + 5 for time in times],
            "kind": "host",
            "name": "x",
            "source": "nsys",
        }
    )
    placed = check_spans(got.apply(spans))
    for time, start in zip(times, placed["start_ns"], strict=True):
        assert abs(start - (time + offset_at(time))) <= got.bound_ns


def test_a_clock_that_jumps_gets_a_bound_that_covers_the_jump() -> None:
    times = [seq * SECOND for seq in range(20)]
    jump = marks([(t, 5_000, 5_000) for t in times], lambda t: OFFSET + (t > 9 * SECOND) * 10**8)
    got = place(jump, NO_ANCHORS, None)
    assert got is not None
    assert got.bound_ns > 10**7


def test_a_window_that_closed_between_the_marks_takes_the_bracket_of_our_record() -> None:
    first = marks([(SECOND, 2_000, 6_000)]).iloc[:1]
    mono = int(first["monotonic_ns"].iloc[0])
    anchors = anchors_frame(
        {"seq": [0], "before_ns": [mono], "after_ns": [mono + 8_000], "realtime_ns": [10**18]}
    )
    got = place(first, anchors, None)
    assert got is not None
    assert (got.offset_ns, got.bound_ns) == (OFFSET - 2_000 + 4_000, 4_000)
    assert place(first, NO_ANCHORS, None) is None


def test_without_beacons_the_utc_start_is_a_guess() -> None:
    realtime = 1_764_547_200_123_456_789
    anchors = anchors_frame(
        {
            "seq": [0, -1],
            "before_ns": [5_000, 9_000],
            "after_ns": [5_200, 9_000],
            "realtime_ns": [realtime, realtime + 3_900],
        }
    )
    got = place(marks([]), anchors, realtime - 1_000)
    assert got is not None and got.is_guess
    assert (got.offset_ns, got.bound_ns) == (4_100, UTC_ERROR_NS)
    assert place(marks([]), anchors, None) is None
    assert place(marks([]), NO_ANCHORS, realtime) is None
