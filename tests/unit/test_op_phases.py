"""Where the time inside the compiled step goes, from operations of known length."""

from __future__ import annotations

import math

import pytest

from hpcprof.analyses import op_phases
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame

pytestmark = pytest.mark.unit

MS = 1_000_000
STEP_MS = 100
# (phase, start, end, thread) within a step of 100 ms, ms
STEP_OPS = [
    ("input", 0, 4, 1),
    ("forward", 5, 25, 1),
    ("forward", 15, 35, 2),  # beside the first: union 30, sum 40
    ("backward", 35, 75, 1),
    ("allreduce", 75, 76, 1),  # hands the tensors over
    ("optimizer", 90, 95, 1),
    (None, 96, 97, 1),
]


def op(step, phase, start, end, *, source="recorder", replica=None):
    begin = step * STEP_MS
    return {
        **{c.START_NS: (begin + start) * MS, c.END_NS: (begin + end) * MS},
        **{c.KIND: c.EXECUTOR_OP, c.PHASE: phase, c.STEP: step},
        **{c.SOURCE: source, c.REPLICA: replica, c.OP: None, c.NAME: f"{phase}/x:MatMul"},
    }


def collective(step, start, end):
    row = op(step, None, start, end)
    return {**row, c.KIND: c.COLLECTIVE, c.OP: "allreduce"}


def whole_step(step):
    return {**op(step, None, 0, STEP_MS, source="hpcprof"), c.KIND: c.STEP_KIND, c.NAME: "step"}


def table(rows):
    return spans_frame({name: [row[name] for row in rows] for name in rows[0]})


def rank(window=range(10, 20), steps=30, ops=STEP_OPS, **given):
    """A rank of equal steps whose operations are named in ``window``."""
    rows = [whole_step(step) for step in range(steps)]
    rows += [op(step, *each[:3], **given) for step in window for each in ops]
    return table(rows)


def test_unions_sums_and_what_belongs_to_no_phase():
    spans = rank()
    found = op_phases.across_ranks({0: op_phases.per_rank(spans)}, expected=1)
    (times,) = found.ranks
    assert (times.rank, times.replica, times.source) == (0, op_phases.WHOLE, "recorder")
    assert (times.steps, times.step_ns) == (tuple(range(10, 20)), 100 * MS)
    union = {name: value / MS for name, value in times.union_ns.items() if value}
    assert union == {
        **{"input": 4, "forward": 30, "backward": 40, "allreduce": 1, "optimizer": 5, "other": 1}
    }
    assert times.sum_ns["forward"] == 40 * MS
    assert times.other_frac == found.other_frac == pytest.approx(1 / 91)
    assert times.launch_ns == 5 * MS
    assert found.share_frac["backward"] == 0.4
    assert found.spread_frac == {}  # there is nobody to compare with
    assert (found.replicas, dict(found.launch_skew_ns)) == ((), {})


def test_a_collective_under_way_counts_for_the_allreduce_and_not_for_the_sum():
    rows = [whole_step(step) for step in range(10)]
    rows += [op(step, *each[:3]) for step in range(10) for each in STEP_OPS]
    rows += [collective(step, 70, 90) for step in range(10)]
    (times,) = op_phases.across_ranks({0: op_phases.per_rank(table(rows))}, expected=1).ranks
    assert times.union_ns["allreduce"] == 20 * MS
    assert times.sum_ns["allreduce"] == 1 * MS


def test_without_operations_there_is_nothing_and_nothing_is_healthy():
    frame = op_phases.per_rank(table([whole_step(step) for step in range(10)]))
    assert frame.empty
    assert op_phases.across_ranks({0: frame, 1: frame}, expected=2) == op_phases.OpPhases()


def test_of_two_sources_one_is_used_per_step_and_never_their_sum():
    rows = [whole_step(step) for step in range(30)]
    rows += [op(step, *each[:3]) for step in range(10, 20) for each in STEP_OPS]
    rows += [op(step, *each[:3], source="tfprof") for step in range(15, 25) for each in STEP_OPS]
    frame = op_phases.per_rank(table(rows))
    assert frame["source"].tolist() == ["recorder"] * 10 + ["tfprof"] * 5
    assert set(frame["forward_sum_ns"]) == {40 * MS}
    (times,) = op_phases.across_ranks({0: frame}, expected=1).ranks
    assert times.source == "recorder + tfprof"


def test_a_step_that_was_named_in_part_is_left_out():
    rows = [whole_step(step) for step in range(20)]
    rows += [op(step, *each[:3]) for step in range(5, 15) for each in STEP_OPS]
    rows += [op(15, "forward", 5, 25)]
    assert op_phases.per_rank(table(rows)).index.tolist() == list(range(5, 15))


def test_a_step_of_which_only_the_evaluation_before_it_was_named_is_left_out():
    rows = [whole_step(step) for step in range(20)]
    rows += [op(step, *each[:3]) for step in range(5, 15) for each in STEP_OPS]
    rows += [op(15, "eval", start, start + 1) for start in range(30)]
    frame = op_phases.per_rank(table(rows))
    assert frame.index.tolist() == list(range(5, 15))


def test_ranks_are_compared_over_the_steps_that_all_of_them_named():
    slow = [*STEP_OPS[:3], ("backward", 35, 85, 1), *STEP_OPS[4:]]
    frames = {
        0: op_phases.per_rank(rank(range(10, 20))),
        1: op_phases.per_rank(rank(range(14, 24), ops=slow)),
    }
    found = op_phases.across_ranks(frames, expected=2)
    assert found.steps == tuple(range(14, 20))
    assert [times.steps for times in found.ranks] == [found.steps, found.steps]
    assert found.spread_frac["backward"] == pytest.approx(0.1)
    assert found.spread_frac["forward"] == 0
    busy = op_phases.across_ranks(frames, expected=2, busy=(14,))
    assert busy.steps == tuple(range(15, 20))


def test_nothing_is_compared_that_not_all_ranks_have():
    frames = {
        0: op_phases.per_rank(rank(range(10, 20))),
        1: op_phases.per_rank(rank(range(18, 28))),
        2: op_phases.per_rank(rank(())),
    }
    apart = op_phases.across_ranks(frames, expected=3)
    assert (apart.steps, dict(apart.spread_frac)) == ((), {})
    assert [times.steps for times in apart.ranks] == [
        tuple(range(10, 20)),
        tuple(range(18, 28)),
    ]
    one_without = op_phases.across_ranks({0: frames[0], 3: frames[0]}, expected=3)
    assert one_without.steps == tuple(range(10, 20))
    assert dict(one_without.spread_frac) == {}


def test_replicas_have_times_of_their_own_and_a_launch_skew():
    rows = [whole_step(step) for step in range(10)]
    for step in range(10):
        for replica, begin in ((0, 5), (1, 5 + 4), (2, 5 + 12)):
            rows.append(op(step, "forward", begin, begin + 10 + replica, replica=replica))
            rows.append(op(step, "backward", 40, 60, replica=replica))
    rows += [collective(step, 60, 70) for step in range(10)]
    found = op_phases.across_ranks({3: op_phases.per_rank(table(rows))}, expected=4)
    assert [(times.rank, times.replica) for times in found.replicas] == [(3, 0), (3, 1), (3, 2)]
    assert [times.union_ns["forward"] / MS for times in found.replicas] == [10, 11, 12]
    assert [times.launch_ns / MS for times in found.replicas] == [5, 9, 17]
    assert [times.union_ns["allreduce"] for times in found.replicas] == [0, 0, 0]
    assert found.launch_skew_ns == {3: 12 * MS}
    (whole,) = found.ranks
    assert whole.union_ns["forward"] == 24 * MS  # 5-15, 9-20, 17-29 together
    assert whole.sum_ns["forward"] == 33 * MS


def test_a_replica_without_forward_operations_has_no_launch():
    rows = [whole_step(step) for step in range(10)]
    for step in range(10):
        rows += [op(step, "forward", 5, 15, replica=0), op(step, "backward", 15, 30, replica=1)]
    found = op_phases.across_ranks({0: op_phases.per_rank(table(rows))}, expected=1)
    assert [math.isnan(times.launch_ns) for times in found.replicas] == [False, True]
    assert dict(found.launch_skew_ns) == {}
