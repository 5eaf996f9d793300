"""What the profiler cost, from runs in which it is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcprof.analyses.profiler_overhead import (
    ProfilerOverhead,
    RankSteps,
    profiler_overhead,
    rank_steps,
)
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame

pytestmark = pytest.mark.unit

MS = 1_000_000
NOTHING = np.empty(0, np.int64)


def run(overhead, *, window=(40, 79), steps=120, ranks=4, drift=0.0, noise=0.02, seed=0, busy=()):
    """Rank → RankSteps: 200 ms per step, growing by ``drift`` over the run; ranks are coupled."""
    generator = np.random.default_rng(seed)
    number = np.arange(1, steps)
    length = 200.0 * MS * (1 + drift * number / steps)
    length = length * np.exp(generator.normal(0, noise, number.size))
    inside = (number >= window[0]) & (number <= window[1])
    length = np.where(inside, length * (1 + overhead), length)
    length = np.where(np.isin(number, busy), length * 20, length)
    return {
        rank: RankSteps(
            pd.Series((length + rank * 1000).astype(np.int64), index=number),
            np.array(busy, np.int64) if rank == 1 else NOTHING,
        )
        for rank in range(ranks)
    }


def everywhere(window=(40, 79), ranks=4):
    return dict.fromkeys(range(ranks), window)


@pytest.mark.parametrize("truth", [0.0, 0.05, 0.3])
def test_the_true_overhead_lies_within_the_interval(truth):
    found = [profiler_overhead(run(truth, seed=seed), everywhere()) for seed in range(40)]
    within = [f.overhead_frac_ci[0] <= truth <= f.overhead_frac_ci[1] for f in found]
    assert np.mean(within) >= 0.85  # a 95 % interval of 40 runs; less than 34 would be 1 in 10 000
    assert np.median([f.overhead_frac for f in found]) == pytest.approx(truth, abs=0.003)
    assert {(f.status, f.inside, f.each_side, f.first_step, f.last_step) for f in found} == {
        ("ok", 40, 39, 40, 79)
    }
    assert set(found[0].by_rank) == {0, 1, 2, 3}


@pytest.mark.parametrize("drift", [-0.5, 0.5])
def test_what_changes_steadily_over_the_run_is_not_taken_for_overhead(drift):
    found = profiler_overhead(run(0.0, drift=drift), everywhere())
    assert abs(found.overhead_frac) < 0.02
    assert np.sign(found.drift_frac) == np.sign(drift)
    assert abs(found.drift_frac) > 0.1


def test_steps_in_which_a_profiler_was_at_work_count_for_neither_side():
    busy = (39, 40, 79, 80, 81)
    found = profiler_overhead(run(0.05, busy=busy, noise=0.005), everywhere())
    assert found.overhead_frac == pytest.approx(0.05, abs=0.005)
    assert (found.inside, found.each_side) == (38, 38)


def test_as_many_steps_are_taken_before_as_after_and_warm_up_is_none_of_them():
    ranks = run(0.05, window=(25, 79), noise=0.001)
    for steps in ranks.values():
        steps.lengths.loc[1:5] *= 3
    found = profiler_overhead(ranks, everywhere((25, 79)))
    assert found.each_side == 24 - 5
    assert found.overhead_frac == pytest.approx(0.05, abs=0.002)


def test_a_window_that_differs_between_ranks_is_what_all_recorded_and_outside_what_none_did():
    found = profiler_overhead(run(0.1, noise=0.001), {0: (40, 79), 1: (45, 79), 3: (40, 70)})
    assert (found.first_step, found.last_step, found.inside) == (45, 70, 26)
    assert found.overhead_frac == pytest.approx(0.1, abs=0.002)
    assert set(found.by_rank) == {0, 1, 3}


@pytest.mark.parametrize(
    ("window", "status", "reason"),
    [
        ((1, 119), "not_collected", "nsys recorded nearly every step; with a window"),
        ((1, 115), "not_collected", "nsys recorded nearly every step; with a window"),
        (
            (40, 58),
            "insufficient",
            "19 steps in which nsys recorded, 39 before and 61 after them can be compared; at "
            "least 20, and 10 on each side, are needed",
        ),
        ((5, 79), "insufficient", "75 steps in which nsys recorded, 4 before and 40 after"),
        ((40, 119), "insufficient", "80 steps in which nsys recorded, 39 before and 0 after"),
    ],
)
def test_too_few_steps_to_compare_are_said_and_no_number_is(window, status, reason):
    found = profiler_overhead(run(0.05, noise=0.0, window=window), everywhere(window))
    assert found.status == status
    assert found.reason.startswith(reason)
    assert np.isnan(found.overhead_frac)


def test_without_a_profiler_there_is_nothing_to_say():
    assert profiler_overhead({}, {}) == ProfilerOverhead()
    assert ProfilerOverhead().reason == ""


def test_a_step_lasts_from_the_end_of_the_one_before():
    table = spans_frame(
        {
            c.START_NS: [10, 30, 60, 70, 200],
            c.END_NS: [20, 55, 62, 90, 220],
            c.KIND: [c.STEP_KIND, c.STEP_KIND, c.BUSY, c.STEP_KIND, c.STEP_KIND],
            c.NAME: "x",
            c.STEP: [0, 1, None, 2, 9],  # 3 to 8 were not recorded
            c.SOURCE: "hpcprof",
        }
    )
    found = rank_steps(table, (1, 1))
    assert found.lengths.to_dict() == {1: 35}  # step 2 is busy, step 9 has nothing before it
    assert found.busy.tolist() == [2]
    assert rank_steps(table.head(0), (1, 1)).lengths.empty


def steps_of_equal_length(count):
    at = np.arange(count, dtype=np.int64) * 100
    return spans_frame(
        {
            c.START_NS: at,
            c.END_NS: at + 90,
            c.KIND: c.STEP_KIND,
            c.NAME: "step",
            c.STEP: np.arange(count),
            c.SOURCE: "hpcprof",
        }
    )


def test_of_a_long_run_the_steps_around_the_window_are_kept():
    kept = rank_steps(steps_of_equal_length(1000), (500, 539)).lengths.index
    assert (kept[0], kept[-1], len(kept)) == (420, 619, 200)


def test_of_a_long_window_the_same_steps_are_kept_on_every_rank():
    steps = rank_steps(steps_of_equal_length(30_000), (100, 20_099)).lengths.index
    inside = steps[(steps >= 100) & (steps <= 20_099)]
    assert 1_900 < len(inside) < 2_100
    assert len(np.unique(np.diff(inside))) > 2  # no fixed distance
    assert 0.08 < np.mean(inside % 10 == 0) < 0.12
    shorter = rank_steps(steps_of_equal_length(25_000), (100, 20_099)).lengths.index
    assert set(inside) <= set(shorter)
