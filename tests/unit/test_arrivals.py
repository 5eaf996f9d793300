"""The clock-free arrival of a step and its disjoint pieces."""

from __future__ import annotations

import pytest

from hpcprof.analyses import arrivals
from hpcprof.trace import columns as c
from hpcprof.trace.frame import concat_spans, spans_frame
from tests.unit.synthetic_run import MS, spans

pytestmark = pytest.mark.unit

# two steps: optimizer of step 0 belongs to the way to the collective of step 1
ROWS = [
    ("input", 0, 0, 5),
    ("forward", 0, 5, 20),
    ("allreduce", 0, 20, 30),
    ("optimizer", 0, 30, 33),
    ("input", 1, 34, 44),
    ("forward", 1, 44, 60),
    ("backward", 1, 60, 90),
    ("allreduce", 1, 92, 100),
]


def test_arrival_runs_from_collective_to_collective():
    frame = arrivals.per_rank(spans(ROWS), arrivals.MARKED)
    assert frame.index.tolist() == [1]  # nothing comes before the collective of step 0
    row = frame.loc[1]
    assert (row["arrival_ns"], row["sync_ns"], row["end_ns"]) == (62 * MS, 8 * MS, 100 * MS)
    assert row["bytes"] == 8


def test_pieces_add_up_to_the_arrival():
    row = arrivals.per_rank(spans(ROWS), arrivals.MARKED).loc[1]
    pieces = {piece: row[f"{piece}_ns"] / MS for piece in arrivals.ALL_PIECES}
    assert pieces == {
        **{"input": 10, "h2d": 0, "checkpoint": 0, "eval": 0},
        **{"forward": 16, "backward": 30, "optimizer": 3, "compute": 0, "host": 3},
    }
    assert sum(pieces.values()) * MS == row["arrival_ns"]


def test_an_instant_in_two_phases_counts_for_input():
    rows = [*ROWS[:5], ("forward", 1, 40, 60), *ROWS[6:]]
    row = arrivals.per_rank(spans(rows), arrivals.MARKED).loc[1]
    assert (row["input_ns"], row["forward_ns"]) == (10 * MS, 16 * MS)


def test_a_step_after_a_gap_has_no_arrival():
    rows = [row for row in ROWS if row[1] == 0] + [("allreduce", 2, 200, 210)]
    assert arrivals.per_rank(spans(rows), arrivals.MARKED).empty


def calls(*steps, length=20, pause=2):
    """One call after the other: a collective in each, ``pause`` ms in between."""
    rows = []
    for number, step in enumerate(steps):
        start = number * (length + pause)
        rows += [("step", step, start, start + length)]
        rows += [("allreduce", step, start + 10, start + length - 1)]
    return spans(rows)


def test_a_call_of_several_steps_follows_the_call_before():
    frame = arrivals.per_rank(calls(0, 4, 8), arrivals.MARKED)
    assert frame.index.tolist() == [4, 8]  # steps_per_execution is 4
    assert frame["arrival_ns"].tolist() == [13 * MS, 13 * MS]
    alone = arrivals.per_rank(calls(0, 4, 8), arrivals.STEP_ENDS)
    assert alone["arrival_ns"].tolist() == [22 * MS, 22 * MS]


def test_steps_that_nobody_recorded_are_a_gap():
    assert arrivals.per_rank(calls(0, 2, 4, pause=22), arrivals.MARKED).empty


def test_where_gradients_are_averaged_every_second_step_an_update_lasts_two():
    rows = calls(*range(6))
    is_left_out = (rows[c.PHASE] == c.ALLREDUCE) & (rows[c.STEP] % 2 == 0)
    frame = arrivals.per_rank(rows[~is_left_out], arrivals.MARKED)
    assert frame.index.tolist() == [3, 5]
    assert frame["stride"].tolist() == [2, 2]
    assert frame["arrival_ns"].tolist() == [35 * MS, 35 * MS]  # from 41 to 76


def test_every_second_step_of_which_nobody_knows_the_others_is_none():
    rows = calls(*range(6))
    is_odd = rows[c.STEP] % 2 == 1
    assert arrivals.per_rank(rows[is_odd], arrivals.MARKED).empty


def test_a_call_without_a_collective_before_has_no_arrival():
    rows = calls(0, 4, 8)
    assert arrivals.per_rank(rows.drop(index=3), arrivals.MARKED).empty  # that of step 4


def collectives(*rows):
    """Of two steps alike, 100 ms each: (start, end, bytes, name)."""
    table = [
        (100 * step + start, 100 * step + end, *rest, step)
        for step in (0, 1)
        for start, end, *rest in rows
    ]
    return spans_frame(
        {
            c.START_NS: [start * MS for start, *_ in table],
            c.END_NS: [end * MS for _, end, *_ in table],
            c.BYTES: [size for _, _, size, *_ in table],
            c.NAME: [name for *_, name, _ in table],
            c.STEP: [step for *_, step in table],
            **{c.KIND: c.COLLECTIVE, c.OP: "allreduce", c.SOURCE: "nsys"},
        }
    )


def arrival(*rows):
    row = arrivals.per_rank(collectives(*rows), arrivals.PROFILER).loc[1]
    assert row["arrival_ns"] + row["sync_ns"] == 100 * MS
    return row["arrival_ns"] / MS


LOSS = (82, 85, 4, "HorovodAllreduce")


def test_the_loss_averaged_after_the_gradients_hides_no_wait_for_them():
    # the wait for the other rank is in 40-80; when the loss is averaged all are there
    assert arrival((40, 80, 4000, "HorovodAllreduce"), LOSS) == 40 + 2 + 15
    assert arrival((40, 80, 4000, "HorovodAllreduce")) == 40 + 20


def test_gradients_one_after_another_are_the_work_of_a_backward_pass():
    small = (82, 85, 64, "HorovodAllreduce")
    assert arrival((40, 80, 4000, "HorovodAllreduce"), small) == 82 + 15


def test_collectives_of_tensorflow_wait_one_after_the_other():
    first = (40, 80, None, "CollectiveReduceV2:CollectiveReduceV2")
    second = (82, 85, None, "div/CollectiveReduceV2:CollectiveReduceV2")
    assert arrival(first, second) == 40 + 2 + 15
    meanwhile = (60, 85, None, "div/CollectiveReduceV2:CollectiveReduceV2")
    assert arrival(first, meanwhile) == 60 + 15


def test_a_rank_that_computes_meanwhile_does_not_wait():
    first = (40, 80, None, "CollectiveReduceV2:CollectiveReduceV2")
    second = (82, 85, None, "div/CollectiveReduceV2:CollectiveReduceV2")
    op = spans_frame(
        {
            **{c.START_NS: [130 * MS], c.END_NS: [165 * MS], c.KIND: c.EXECUTOR_OP, c.STEP: [1]},
            **{c.PHASE: c.BACKWARD, c.NAME: "gradient_tape/MatMul:MatMul", c.SOURCE: "tfprof"},
        }
    )
    both = concat_spans([collectives(first, second), op])
    row = arrivals.per_rank(both, arrivals.PROFILER).loc[1]
    assert row["arrival_ns"] == (40 + 25 + 2 + 15) * MS


def test_forms_are_told_apart():
    marked = spans(ROWS)
    assert arrivals.collective_forms(marked) == {arrivals.MARKED}
    assert arrivals.collective_forms(marked[marked[c.PHASE] != c.ALLREDUCE]) == set()
