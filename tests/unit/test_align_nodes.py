"""Nodes on one clock: the truth lies within every printed bound, whatever the clocks did."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.align import apply, fit_nodes, job_start, pair_bound_ns, violations
from hpcprof.align.causality import per_node
from hpcprof.align.drift import RHO_PPB, theil_sen
from hpcprof.align.node_clock import NodeClock
from hpcprof.align.offset_curve import OffsetCurve
from hpcprof.align.wall_clock import NTP_ERROR_NS, UNBRACKETED_ERROR_NS
from hpcprof.errors import InputError
from hpcprof.trace import RankInfo, Trace, check_spans, empty_counters, spans_frame
from tests.unit.true_clocks import EPOCH_NS, Job, S

pytestmark = pytest.mark.unit


def assert_within(job: Job, fitted: dict[str, NodeClock], true_ns: np.ndarray | None = None):
    for node, (error, bound) in job.errors(fitted, true_ns).items():
        assert (error <= bound).all(), f"{node}: {(error - bound).max()} ns beyond the bound"


def by_agent(job: Job, **other) -> dict[str, NodeClock]:
    return fit_nodes(job.anchors(), job.exchanges(), "node0", **other)


def by_collectives(job: Job, **made) -> dict[str, NodeClock]:
    return fit_nodes(job.anchors(), collectives=job.collectives(**made), node_of=job.node_of)


# --- the agent's exchanges ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_exchanges_bound_the_truth_at_every_time_of_the_run_and_beside_it(seed: int) -> None:
    job = Job(seed, nodes=2 + seed % 3, seconds=(31, 65, 600)[seed % 3])
    clocks = by_agent(job)
    assert_within(job, clocks)
    for clock in list(clocks.values())[1:]:
        assert (clock.status, clock.method, clock.warnings) == ("tight", "agent ping-pong", ())
        assert clock.bound_ns is not None
        assert clock.bound_ns < 100_000
        assert clock.rho_ppb == RHO_PPB
    assert (clocks["node0"].status, clocks["node0"].bound_ns) == ("tight", 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sixteen_nodes_over_hours_are_within_their_bounds(seed: int) -> None:
    job = Job(1000 + seed, nodes=16, seconds=5_000)
    clocks = by_agent(job)
    assert_within(job, clocks)
    assert max(clock.bound_ns or 0 for clock in clocks.values()) < 100_000
    assert_within(job, by_collectives(job))


def test_a_rate_that_changes_as_much_as_assumed_between_bursts_is_within_the_bound() -> None:
    job = Job(12, nodes=2, seconds=1_200)
    turns = np.where(np.arange(1_600) % 300 < 150, 1.0, -1.0)  # bursts are 300 s apart
    for node, sign in (("node0", -1), ("node1", 1)):
        rates = 20_000 * sign + sign * turns * RHO_PPB / 4
        gained = np.concatenate([[0.0], np.cumsum(np.roll(rates, 200))])
        job.clocks[node].gained = gained - gained[200]
    clocks = fit_nodes(job.anchors(), job.exchanges(every_s=300), "node0")
    true_ns = np.arange(0, 1_200, 5, dtype=np.int64) * S
    assert_within(job, clocks, true_ns)
    error, _ = job.errors(clocks, true_ns)["node1"]
    assert error.max() > 50_000  # the interpolation alone is that wrong
    assert clocks["node1"].warnings == ()


def test_the_drift_of_a_clock_is_found_with_its_sign() -> None:
    job = Job(3, nodes=2, seconds=600)
    job.clocks["node0"].ppb = 0
    job.clocks["node0"].__post_init__()
    job.clocks["node1"].ppb = 40_000
    job.clocks["node1"].__post_init__()
    assert by_agent(job)["node1"].drift_ppb == pytest.approx(40_000, abs=RHO_PPB)


@pytest.mark.parametrize("step_ns", [2_000_000, -2_000_000])
@pytest.mark.parametrize("at_s", [40, 155, 290])
def test_a_step_between_bursts_is_noticed_and_widens_the_bound_there_only(
    step_ns: int, at_s: int
) -> None:
    job = Job(7, nodes=3, seconds=300)
    job.clocks["node1"].step_at_ns, job.clocks["node1"].step_ns = at_s * S, step_ns
    clocks = by_agent(job)
    assert len(clocks["node1"].warnings) == 1
    warning = clocks["node1"].warnings[0]
    assert "in 1 of 10 intervals between bursts it moved by up to" in warning
    assert f"first {at_s // 30 * 30} s after the first burst" in warning
    assert clocks["node2"].warnings == ()
    assert 2_000_000 < (clocks["node1"].bound_ns or 0) < 2_300_000
    assert_within(job, clocks)
    true_ns = np.arange(0, 300, dtype=np.int64) * S
    is_near = np.abs(true_ns - at_s * S) <= 30 * S
    _, bound = job.errors(clocks, true_ns)["node1"]
    assert bound[~is_near].max() < 100_000


def test_a_step_of_one_of_three_bursts_leaves_both_intervals_in_doubt() -> None:
    job = Job(8, nodes=2, seconds=60)
    job.clocks["node1"].step_at_ns, job.clocks["node1"].step_ns = 40 * S, 2_000_000
    clocks = by_agent(job)
    assert "in 2 of 2 intervals between bursts" in clocks["node1"].warnings[0]
    assert_within(job, clocks)


def test_with_one_burst_the_bound_grows_with_the_largest_drift() -> None:
    job = Job(9, nodes=2, seconds=100)
    exchanges = {node: table[table["burst"] == 0] for node, table in job.exchanges().items()}
    clocks = fit_nodes(job.anchors(), exchanges, "node0")
    assert_within(job, clocks)
    assert clocks["node1"].samples == 1
    assert 10_000_000 < (clocks["node1"].bound_ns or 0) < 10_100_000  # 100 s at 100 ppm


def test_a_burst_on_a_busy_network_does_not_widen_the_bound() -> None:
    job = Job(11, nodes=2, seconds=300)
    table = job.exchanges()["node1"]
    is_slow = table["burst"].isin([3, 4])
    table["received_ns"] += is_slow * 10_000_000
    clocks = fit_nodes(job.anchors(), {"node1": table}, "node0")
    assert_within(job, clocks)
    assert clocks["node1"].samples == 9
    assert (clocks["node1"].bound_ns or 0) < 150_000
    # nor at the ends of the run, where processors are busy: the drift says more than they do
    table["received_ns"] += table["burst"].isin([0, 10]) * 10_000_000
    clocks = fit_nodes(job.anchors(), {"node1": table}, "node0")
    assert_within(job, clocks)
    assert clocks["node1"].samples == 7
    assert (clocks["node1"].bound_ns or 0) < 200_000


def test_impossible_exchanges_are_not_used() -> None:
    job = Job(10, nodes=2, seconds=100)
    good = job.exchanges()["node1"]
    torn = good.assign(received_ns=good["sent_ns"] - 5)
    early = good.assign(answered_ns=good["arrived_ns"] + 10**9)
    mixed = pd.concat([torn, early, good], ignore_index=True)
    same = fit_nodes(job.anchors(), {"node1": mixed}, "node0")["node1"]
    assert same == fit_nodes(job.anchors(), {"node1": good}, "node0")["node1"]
    with pytest.raises(ValueError, match="without the node"):
        fit_nodes(job.anchors(), {"node1": good})


# --- collectives -------------------------------------------------------------------------------

ODD_JOBS = {
    "plain": {},
    "a node is mostly last": {"late": {"node1": 5_000_000}},
    "the reference is mostly last": {"late": {"node0": 5_000_000}},
    "one node is always last": {"late": {"node1": 50_000_000}},
    "ends come later and later": {"skew_ns": {"node1": 1_000_000}},
    "no tiny collective": {"tiny_every": 0},
    "few collectives": {"count": 8},
}


@pytest.mark.parametrize("made", ODD_JOBS.values(), ids=ODD_JOBS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_collectives_bound_the_truth_whoever_is_late(seed: int, made: dict) -> None:
    job = Job(100 + seed, nodes=2 + seed % 2, seconds=(40, 300)[seed % 2])
    clocks = by_collectives(job, **made)
    assert_within(job, clocks)
    for clock in clocks.values():
        assert (clock.status, clock.method) == ("bounded", "collective ends")
        assert (clock.warnings, clock.violations) == ((), 0)


def test_of_a_node_the_last_start_and_the_first_end_count() -> None:
    table = pd.DataFrame(
        {
            "rank": [0, 1, 2, 9],
            "step": [4, 4, 4, 4],
            "seq": [1, 1, 1, 1],
            "start_ns": [10, 13, 5, 1],
            "end_ns": [30, 28, 99, 1],
        }
    )
    tables = per_node(table, {0: "a", 1: "a", 2: "b"})
    assert {node: ends.to_numpy().tolist() for node, ends in tables.items()} == {
        "a": [[13, 28]],
        "b": [[5, 99]],
    }


def test_a_straggler_is_not_taken_for_a_clock() -> None:
    job = Job(21, nodes=3, seconds=60)
    true_ns = np.arange(0, 60, dtype=np.int64) * S
    clocks = by_collectives(job, late={"node1": 5_000_000})
    error, _ = job.errors(clocks, true_ns)["node1"]
    assert error.max() < 50_000


def test_one_tiny_collective_narrows_the_bound() -> None:
    wide = by_collectives(Job(22, nodes=2, seconds=30), tiny_every=0, count=200)["node1"]
    job = Job(22, nodes=2, seconds=30)
    narrow = by_collectives(job, tiny_every=5, count=200)["node1"]
    assert (narrow.bound_ns or 0) < 200_000 < 1_000_000 < (wide.bound_ns or 0)


def test_a_mismatched_collective_is_dropped_and_told() -> None:
    job = Job(23, nodes=2, seconds=60)
    table = job.collectives()
    is_wrong = (table["rank"] >= 2) & (table["step"] == 7) & (table["seq"] == 3)
    table.loc[is_wrong, ["start_ns", "end_ns"]] += 50_000_000
    clocks = fit_nodes(job.anchors(), collectives=table, node_of=job.node_of)
    assert_within(job, clocks)
    assert clocks["node1"].status == "bounded"
    assert "1 collectives end before they have started elsewhere" in clocks["node1"].warnings[0]
    assert clocks["node1"].violations == clocks["node0"].violations == 1


def test_a_clock_set_in_the_middle_is_not_aligned_by_collectives() -> None:
    job = Job(24, nodes=3, seconds=60)
    job.clocks["node1"].step_at_ns, job.clocks["node1"].step_ns = 30 * S, 8_000_000
    clocks = by_collectives(job)
    assert clocks["node1"].status == "utc-only"
    assert "contradict those of the reference" in clocks["node1"].warnings[-1]
    assert (clocks["node2"].status, clocks["node2"].warnings) == ("bounded", ())
    assert_within(job, {node: clocks[node] for node in clocks})


def test_too_few_collectives_leave_the_wall_clock() -> None:
    job = Job(25, nodes=2, seconds=60)
    clocks = by_collectives(job, count=4)
    assert [clock.status for clock in clocks.values()] == ["utc-only", "utc-only"]
    assert "4 collectives in common with node node0; 5 are needed" in clocks["node1"].warnings[0]


def test_violations_count_collectives_and_point_at_the_wrong_clock() -> None:
    job = Job(26, nodes=4, seconds=60)
    table = job.collectives(count=100)
    clocks = by_agent(job)
    assert violations(table, clocks, job.node_of) == dict.fromkeys(clocks, 0)
    wrong = {**clocks, "node2": clocks["node2"].shifted(20_000_000)}
    assert violations(table, wrong, job.node_of) == {
        "node0": 100,
        "node1": 100,
        "node2": 100,
        "node3": 100,
    }
    two = {node: wrong[node] for node in ("node0", "node1")}
    assert violations(table, two, job.node_of) == {"node0": 0, "node1": 0}


def test_a_collective_that_a_rank_has_twice_is_not_used() -> None:
    job = Job(27, nodes=2, seconds=60)
    table = job.collectives()
    late = table.assign(start_ns=table["start_ns"] + 10**9, end_ns=table["end_ns"] + 10**9)
    twice = pd.concat([table, late[late["step"] == 3]], ignore_index=True)
    clock = fit_nodes(job.anchors(), collectives=twice, node_of=job.node_of)["node1"]
    assert (clock.samples, clock.warnings) == (190, ())


# --- together ----------------------------------------------------------------------------------


def test_collectives_confirm_the_agents_or_say_how_far_off_they_are() -> None:
    job = Job(30, nodes=3, seconds=120)
    table = {"collectives": job.collectives(), "node_of": job.node_of}
    assert all(not clock.warnings for clock in by_agent(job, **table).values())
    exchanges = job.exchanges()
    for column in ("sent_ns", "received_ns"):
        exchanges["node1"][column] += 5_000_000
    clocks = fit_nodes(job.anchors(), exchanges, "node0", **table)
    (warning,) = clocks["node1"].warnings
    assert "node node1: its agent's exchanges and the ends of collectives put its clock" in warning
    assert clocks["node1"].method == "agent ping-pong"
    assert clocks["node1"].violations > 100
    assert clocks["node2"].warnings == ()


def test_agent_files_lost_on_one_node_leave_it_to_collectives_else_to_the_wall_clock() -> None:
    job = Job(31, nodes=3, seconds=120)
    exchanges = job.exchanges()
    del exchanges["node2"]
    table = {"collectives": job.collectives(), "node_of": job.node_of}
    clocks = fit_nodes(job.anchors(), exchanges, "node0", **table)
    assert [clock.status for clock in clocks.values()] == ["tight", "tight", "bounded"]
    assert "its agent left no exchange" in clocks["node2"].warnings[0]
    assert_within(job, clocks)
    clocks = fit_nodes(job.anchors(), exchanges, "node0")
    assert [clock.status for clock in clocks.values()] == ["tight", "tight", "utc-only"]
    assert (clocks["node2"].bound_ns or 0) >= NTP_ERROR_NS
    exchanges["node2"] = exchanges["node1"].iloc[:0]
    clocks = fit_nodes(job.anchors(), exchanges, "node0")
    assert clocks["node2"].status == "utc-only"
    assert "exchanged nothing usable" in clocks["node2"].warnings[0]


def test_a_node_is_tied_through_another_one_when_the_reference_left_no_collective() -> None:
    job = Job(32, nodes=3, seconds=120)
    exchanges = job.exchanges()
    del exchanges["node2"]
    table = job.collectives()
    table = table[~table["rank"].isin([0, 1])]
    clocks = fit_nodes(job.anchors(), exchanges, "node0", table, job.node_of)
    assert clocks["node2"].status == "bounded"
    assert_within(job, clocks)


def test_what_is_not_known_of_the_node_in_between_widens_the_bound() -> None:
    job = Job(37, nodes=3, seconds=120)
    first = job.exchanges()["node1"]
    table = job.collectives()
    table = table[~table["rank"].isin([0, 1])]
    exchanges = {"node1": first[first["burst"] == 0]}
    clocks = fit_nodes(job.anchors(), exchanges, "node0", table, job.node_of)
    assert clocks["node2"].status == "bounded"
    assert_within(job, clocks)
    error, _ = job.errors(clocks)["node2"]
    assert error.max() > 1_000_000


def test_a_node_left_to_its_wall_clock_bears_the_doubt_of_the_references_too() -> None:
    job = Job(38, nodes=3, seconds=60)
    exchanges, anchors = job.exchanges(), job.anchors()
    del exchanges["node2"]
    pair = anchors["node0"][0].assign(seq=-1)
    pair = pair.assign(after_ns=pair["before_ns"]).iloc[:1]
    clocks = fit_nodes({**anchors, "node0": {0: pair}}, exchanges, "node0")
    assert clocks["node2"].bound_ns == NTP_ERROR_NS + 250 + UNBRACKETED_ERROR_NS + 1


def test_without_agent_and_collectives_all_is_as_wall_clocks_have_it() -> None:
    job = Job(33, nodes=3, seconds=60)
    clocks = fit_nodes(job.anchors())
    for node, clock in clocks.items():
        truth = job.clocks[node]
        assert (clock.status, clock.method) == ("utc-only", "wall clock")
        assert abs(clock.offset_ns - (EPOCH_NS + truth.wall_ns - truth.boot_ns)) <= 300
        assert clock.bound_ns == NTP_ERROR_NS + 250
        assert (clock.drift_ppb, clock.rho_ppb, clock.violations, clock.curve) == (0, 0, 0, None)
    assert fit_nodes(job.anchors(), {}, None, None, None) == clocks
    assert fit_nodes(job.anchors(), {}, "node0") == clocks


def test_one_node_is_its_own_clock_whatever_else_is_there() -> None:
    job = Job(34, nodes=1, seconds=60)
    alone = fit_nodes(job.anchors())["node0"]
    assert (alone.status, alone.bound_ns) == ("tight", 250)
    assert by_collectives(job)["node0"] == alone


def test_the_job_clock_is_the_references_wall_clock() -> None:
    job = Job(35, nodes=3, seconds=60)
    clocks = by_agent(job)
    assert abs(job_start(clocks, job.anchors()) - EPOCH_NS - job.clocks["node0"].wall_ns) < 200_000
    lost = {node: tables for node, tables in job.anchors().items() if node != "node0"}
    clocks = fit_nodes(lost, job.exchanges(), "node0")
    assert abs(job_start(clocks, lost) - EPOCH_NS - job.clocks["node1"].wall_ns) < 200_000
    assert_within(job, clocks)


def test_the_bound_of_a_pair_is_the_sum_of_both() -> None:
    known = NodeClock("a", 0, 0, 0, 30, "m", "tight")
    clocks = {"a": known, "b": replace(known, bound_ns=12), "c": replace(known, bound_ns=None)}
    assert pair_bound_ns(clocks, "a", "b") == 42
    assert pair_bound_ns(clocks, "a", "a") == 0
    assert pair_bound_ns(clocks, "a", "c") is None
    with pytest.raises(InputError, match="nothing ties the clock of node a"):
        clocks["c"].bound_at([1])


def test_the_summary_has_everything_but_the_curve() -> None:
    clock = by_agent(Job(36, nodes=2, seconds=60))["node1"]
    assert clock.curve is not None
    summary = clock.summary()
    assert set(asdict(clock)) - set(summary) == {"curve"}
    assert (summary["samples"], summary["offset_ns"]) == (3, clock.offset_ns)


# --- the curve ---------------------------------------------------------------------------------


def curve(times: list[int], offsets: list[int], slope: float = 0.0) -> OffsetCurve:
    return OffsetCurve(
        times_ns=np.array(times, dtype=np.int64),
        offsets_ns=np.array(offsets, dtype=np.int64),
        widths_ns=np.full(len(times), 10, dtype=np.int64),
        slope=slope,
        growth_inside=1e-6,
        growth_outside=1e-4,
        jumps_ns=np.zeros(len(times) - 1, dtype=np.int64),
    )


def test_offsets_of_epoch_size_are_exact_to_the_nanosecond() -> None:
    made = curve([10**18, 10**18 + 1_000], [EPOCH_NS, EPOCH_NS + 3], slope=0.001)
    times = np.array([10**18 - 1_000, 10**18, 10**18 + 334, 10**18 + 1_000, 10**18 + 2_000])
    offsets = made.offset_at(times) - EPOCH_NS
    assert offsets.tolist() == [-1, 0, 1, 3, 4]
    assert offsets.dtype == np.int64


def test_the_bound_grows_from_the_knots_and_faster_outside() -> None:
    made = curve([0, 10**9], [0, 0])
    times = np.array([-(10**6), 0, 10**8, 5 * 10**8, 10**9, 10**9 + 10**6])
    assert made.bound_at(times).tolist() == [111, 11, 111, 511, 11, 111]
    assert made.largest_bound_ns(0, 10**9) == 511
    assert made.largest_bound_ns(-(10**8), 10**9) == 10_011


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 10**8), st.floats(-0.4, 0.4)), min_size=1, max_size=8),
    st.floats(-0.4, 0.4),
)
def test_moments_keep_their_order_across_knots(times: list, parts: list, slope: float) -> None:
    knots, offsets = [10**18], [EPOCH_NS]
    for length, rate in parts:
        knots.append(knots[-1] + length)
        offsets.append(offsets[-1] + int(length * rate))
    moments = np.sort(np.array(times, dtype=np.int64)) + 10**18 - 10**8
    moments = np.sort(np.concatenate([moments, moments + 1, knots]))
    moved = NodeClock("n", 0, 0, 0, 1, "m", "tight", curve=curve(knots, offsets, slope))
    assert (np.diff(moved.to_job(moments)) >= 0).all()


def test_a_curve_refuses_knots_that_turn_time_back() -> None:
    with pytest.raises(ValueError, match="turn time back"):
        curve([0, 100], [0, -101])
    with pytest.raises(ValueError, match="increasing"):
        curve([0, 0], [0, 0])


def test_spans_across_a_knot_stay_sorted_and_end_after_they_start() -> None:
    made = curve([1_000, 2_000, 3_000], [EPOCH_NS, EPOCH_NS - 300, EPOCH_NS + 100])
    clock = NodeClock("node0", EPOCH_NS, 0, 0, 1, "m", "tight", curve=made)
    starts = np.sort(np.random.default_rng(1).integers(500, 3_500, 300))
    spans = spans_frame(
        {
            "start_ns": starts,
            "end_ns": starts + np.arange(300) % 40,
            "kind": "step",
            "name": "step",
            "source": "hpcprof",
        }
    )
    trace = Trace(RankInfo(0, 0, "node0", 1), spans, empty_counters())
    moved = apply(trace, clock, EPOCH_NS).spans
    check_spans(moved)
    where = int(np.searchsorted(starts, 1_900))
    start = int(starts[where])
    assert moved["start_ns"][where] == start - int(np.ceil((start - 1_000) * 0.3 - 0.5))
    assert trace.spans["start_ns"].tolist() == starts.tolist()


@settings(max_examples=30, deadline=None)
@given(st.floats(-1, 1), st.floats(-100, 100), st.integers(10, 60))
def test_the_robust_line_ignores_a_fifth_of_wrong_points(
    slope: float, start: float, points: int
) -> None:
    x = np.arange(points, dtype=float)
    y = start + slope * x
    y[::5] += 1e6
    found, intercept = theil_sen(x, y)
    assert (found, intercept) == (pytest.approx(slope, abs=1e-6), pytest.approx(start, abs=1e-4))
