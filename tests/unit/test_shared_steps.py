"""Which steps of all ranks are compared; truth counted by hand, and by a look at all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analyses import shared_steps as shared
from hpcprof.analyses.arrivals import MARKED, NONE, PROFILER
from hpcprof.analyses.collectives import in_steps, matched
from hpcprof.trace import columns as c
from hpcprof.trace.frame import concat_spans, spans_frame
from tests.unit.synthetic_run import spans

pytestmark = pytest.mark.unit


def calls(per_step, size=8):
    """Allreduces of a rank as a profiler saw them: step → how many."""
    steps = [step for step, count in per_step.items() for _ in range(count)]
    at = np.arange(len(steps), dtype=np.int64) * 10
    return spans_frame(
        {
            c.START_NS: at,
            c.END_NS: at + 5,
            c.KIND: c.COLLECTIVE,
            c.NAME: "HorovodAllreduce",
            c.OP: "allreduce",
            c.STEP: steps,
            c.BYTES: size,
            c.SOURCE: "nsys",
        }
    )


def of(ranks):
    """SharedSteps of rank → spans."""
    return shared.shared_steps((rank, shared.step_counts(table)) for rank, table in ranks.items())


MARKS = spans([(c.ALLREDUCE, 0, 10, 20), (c.ALLREDUCE, 1, 30, 40)])


def test_the_finest_form_that_all_ranks_have_is_taken():
    both = concat_spans([MARKS, calls({0: 2})])
    assert of({0: both, 1: both}).form == PROFILER
    mixed = of({0: both, 1: MARKS})
    assert (mixed.form, mixed.chosen().tolist()) == (MARKED, [0, 1])
    for apart in (of({0: calls({0: 1}), 1: MARKS}), of({}), of({0: MARKS.head(0)})):
        assert (apart.form, apart.ranks, apart.chosen().tolist()) == (NONE, (), [])
        assert apart.uneven() == 0


def forms(ranks):
    """SharedForms of rank → spans."""
    return shared.shared_forms((rank, shared.step_counts(table)) for rank, table in ranks.items())


def test_a_window_of_the_profiler_judges_transfer_and_the_marks_judge_lateness():
    marks = spans([(c.ALLREDUCE, step, 10 * step, 10 * step + 5) for step in range(40)])
    window = concat_spans([marks, calls(dict.fromkeys(range(10, 29), 2))])
    lateness, transfer = forms({0: window, 1: window})
    assert (lateness.form, len(lateness.chosen())) == (MARKED, 40)
    assert (transfer.form, transfer.chosen().tolist()) == (PROFILER, list(range(10, 29)))


def test_the_profiler_judges_lateness_from_half_of_the_marked_steps_on_every_rank():
    marks = spans([(c.ALLREDUCE, step, 10 * step, 10 * step + 5) for step in range(40)])
    half = concat_spans([marks, calls(dict.fromkeys(range(20), 2))])
    less = concat_spans([marks, calls(dict.fromkeys(range(19), 2))])
    unmarked = calls(dict.fromkeys(range(5), 2))
    assert [form.form for form in forms({0: half, 1: half})] == [PROFILER, PROFILER]
    # one rank whose window is shorter decides for all: forms are never mixed
    assert [form.form for form in forms({0: half, 1: less})] == [MARKED, PROFILER]
    # a rank without marks: there is no marked form that all ranks have
    assert [form.form for form in forms({0: less, 1: unmarked})] == [PROFILER, PROFILER]
    # steps that were not marked do not count as covered
    elsewhere = concat_spans([marks, calls(dict.fromkeys(range(100, 140), 2))])
    assert forms({0: elsewhere}).lateness.form == MARKED
    assert [form.form for form in forms({0: marks, 1: half})] == [MARKED, MARKED]


def test_a_rank_without_any_collective_takes_no_step_from_the_others():
    found = of({0: MARKS, 1: MARKS.head(0), 2: MARKS})
    assert (found.form, found.ranks, found.chosen().tolist()) == (MARKED, (0, 2), [0, 1])


def test_steps_that_a_rank_lacks_or_counts_otherwise_are_not_taken_but_counted():
    found = of({0: calls({0: 1, 1: 3, 2: 2, 5: 4}), 1: calls({0: 1, 1: 2, 2: 2})})
    assert (found.chosen().tolist(), found.uneven()) == ([0, 2], 3 + 4)
    within = range(1, 3)
    assert (found.chosen(within).tolist(), found.uneven(within)) == ([2], 3)
    assert found.chosen(range(7, 9)).tolist() == []


def test_of_a_long_training_steps_are_taken_evenly_with_the_first_and_the_last():
    table = calls(dict.fromkeys(range(7, 7 + 5 * shared.MOST_STEPS), 1))
    steps = of({0: table, 1: table}).chosen()
    assert (len(steps), steps[0], steps[-1]) == (shared.MOST_STEPS, 7, 6 + 5 * shared.MOST_STEPS)
    assert np.array_equal((steps - 7) // 5, np.arange(shared.MOST_STEPS))  # one of every five
    assert of({0: table, 1: table}).chosen().tolist() == steps.tolist()


def test_steps_that_come_round_regularly_are_not_all_that_is_taken():
    """Every tenth step is one with a checkpoint, and every tenth could be taken."""
    steps = of({0: calls(dict.fromkeys(range(10 * shared.MOST_STEPS - 9), 1))}).chosen()
    assert 0.08 < np.mean(steps % 10 == 0) < 0.12


def test_no_step_is_left_out_when_there_are_few():
    table = calls(dict.fromkeys(range(shared.MOST_STEPS), 1))
    assert of({0: table, 1: table}).chosen().tolist() == list(range(shared.MOST_STEPS))


def test_many_collectives_in_a_step_mean_fewer_steps_but_never_too_few(monkeypatch):
    table = calls(dict.fromkeys(range(300), 5))
    ranks = of(dict.fromkeys(range(4), table))
    monkeypatch.setattr(shared, "MOST_ROWS", 4000)
    assert len(ranks.chosen()) == 4000 // (4 * 5)
    monkeypatch.setattr(shared, "MOST_ROWS", 40)
    assert len(ranks.chosen()) == shared.FEWEST_STEPS


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 6), st.tuples(st.integers(1, 3), st.sampled_from([8, 16])), min_size=1
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_matched_in_chosen_steps_is_what_is_matched_in_all(made):
    ranks = {
        rank: concat_spans([calls({step: count}, size) for step, (count, size) in steps.items()])
        for rank, steps in enumerate(made)
    }
    found = of(ranks)
    chosen = found.chosen()
    kept = {rank: in_steps(table, found.form, chosen) for rank, table in ranks.items()}
    few, everything = matched(kept, found.form), matched(ranks, PROFILER)
    assert few.rows.equals(everything.rows)
    assert few.dropped + found.uneven() == everything.dropped
