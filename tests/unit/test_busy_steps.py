"""Which steps a profiler disturbed, by hand; and that no verdict is built on them."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analyses.arrivals import MARKED, PROFILER
from hpcprof.analyses.busy_steps import BusySteps, busy_steps, of_any_rank
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.stragglers import stragglers
from hpcprof.trace import columns as c
from hpcprof.trace.frame import concat_spans, spans_frame
from tests.unit.synthetic_run import MS, frames, spans

pytestmark = pytest.mark.unit

# three steps of 100 ms; the allreduce ends 10 ms before the step does
ROWS = [
    row
    for step in range(3)
    for row in (
        ("input", step, 100 * step, 100 * step + 20),
        ("allreduce", step, 100 * step + 60, 100 * step + 90),
        ("step", step, 100 * step + 20, 100 * step + 100),
    )
]


def busy(*times):
    """Spans of a profiler at work, in ms."""
    return spans_frame(
        {
            c.START_NS: [round(start * MS) for start, _ in times],
            c.END_NS: [round(end * MS) for _, end in times],
            c.KIND: c.BUSY,
            c.NAME: "nsys stop",
            c.SOURCE: "launcher",
        }
    )


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ([(120, 130)], [1]),
        ([(80, 130)], [0, 1]),
        # after the last allreduce of step 0: it delays that of step 1, and not step 0
        ([(92, 98)], [1]),
        ([(90, 90.5)], [1]),
        ([(0, 1)], [0]),
        ([(-500, -1)], []),  # before anything of the training
        ([(290, 5000)], []),  # after its last allreduce: no other waits for it
        ([(150, 150)], []),  # no time at all
        ([(10, 20), (10, 20), (210, 215)], [0, 2]),
        ([(-50, 400)], [0, 1, 2]),
        ([], []),
    ],
)
def test_a_step_is_busy_when_the_way_to_its_last_allreduce_overlaps(times, steps):
    table = concat_spans([spans(ROWS), busy(*times)]) if times else spans(ROWS)
    assert busy_steps(table, MARKED).tolist() == steps
    assert busy_steps(table, PROFILER).tolist() == []


def test_what_is_busy_on_one_rank_is_left_out_for_all():
    assert of_any_rank([np.array([4, 5]), np.array([], np.int64), np.array([5, 9])]) == (4, 5, 9)
    matrix = across_ranks(frames(3, steps=30), 3, busy=(4, 5, 9, 77))
    assert matrix.busy == BusySteps((4, 5, 9), 27 - matrix.warm_up)
    assert not {4, 5, 9} & set(matrix.steps)
    assert {len(values) for values in matrix.values.values()} == {27 - matrix.warm_up}
    assert across_ranks(frames(3, steps=30), 3).busy == BusySteps((), 30)


@pytest.mark.parametrize(
    ("left_out", "left", "too_many"),
    [
        (0, 3, False),  # too few for other reasons
        (1, 4, True),
        (1, 5, False),
        (10, 10, False),  # half
        (11, 10, True),
        (15, 19, False),
        (300, 19, True),
        (300, 20, False),  # a report that was written for long, in a training that was longer
    ],
)
def test_too_few_steps_are_left_when_they_are_few_and_fewer_than_the_busy_ones(
    left_out, left, too_many
):
    assert BusySteps(tuple(range(left_out)), left).are_too_many == too_many


def test_a_verdict_on_too_few_undisturbed_steps_is_not_made():
    nodes = {0: "node0", 1: "node0", 2: "node1"}
    disturbed = across_ranks(frames(3, steps=40, extra_ms={(1, "input"): 90.0}), 3, range(30))
    verdict = stragglers(disturbed, nodes)
    assert (verdict.status, verdict.found) == ("insufficient", ())
    assert verdict.reason == (
        "a profiler was starting, stopping or writing in 30 of 40 comparable steps; the other 10 "
        "say too little"
    )
    enough = across_ranks(frames(3, steps=40, extra_ms={(1, "input"): 90.0}), 3, range(20))
    assert [found.ranks for found in stragglers(enough, nodes).found] == [(1,)]


def test_ranks_that_horovod_does_not_connect_are_not_compared():
    matrix = across_ranks(frames(3, extra_ms={(1, "input"): 90.0}), 3)
    verdict = stragglers(matrix, {0: "a", 1: "a", 2: "b"}, connected=False)
    assert (verdict.status, verdict.found) == ("insufficient", ())
    assert verdict.reason == "Horovod does not connect the ranks to one job"
