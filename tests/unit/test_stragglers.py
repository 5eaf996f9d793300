"""Who is late: known truth in, exactly that out; healthy runs accuse nobody."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analyses import stragglers as s
from hpcprof.analyses.blame import blame
from hpcprof.analyses.causes import cause
from hpcprof.analyses.step_matrix import across_ranks
from tests.unit.synthetic_run import frames

pytestmark = pytest.mark.unit


def _verdict(ranks, per_node=2, **kwargs):
    matrix = across_ranks(frames(ranks, **kwargs), ranks)
    nodes = {rank: f"node{rank // per_node}" for rank in range(ranks)}
    return matrix, s.stragglers(matrix, nodes)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("half", [False, True])
def test_one_or_half_of_the_ranks_slow_are_named_with_the_size(ranks, half):
    slow = tuple(range(ranks - (ranks // 2 if half else 1), ranks))
    extra = {(rank, "backward"): 40.0 for rank in slow}
    matrix, verdict = _verdict(ranks, extra_ms=extra)
    assert tuple(sorted(r for found in verdict.found for r in found.ranks)) == slow
    for found in verdict.found:
        assert found.late_ns == pytest.approx(40e6, rel=0.1)
        assert found.late_steps_frac == 1.0
        why = cause(matrix, found, verdict.baseline_ranks)
        assert (why.names, why.phase) == (("compute",), "backward")


def test_two_ranks_only_compare_with_each_other():
    _, verdict = _verdict(2, extra_ms={(1, "input"): 50.0})
    assert [(f.scope, f.ranks) for f in verdict.found] == [(s.PAIR, (1,))]


def test_a_whole_slow_node_is_one_straggler():
    matrix, verdict = _verdict(4, extra_ms={(2, "input"): 80.0, (3, "input"): 90.0})
    (found,) = verdict.found
    assert (found.scope, found.ranks, found.nodes) == (s.NODE, (2, 3), ("node1",))
    assert found.late_ns == pytest.approx(90e6, rel=0.05)
    assert cause(matrix, found, verdict.baseline_ranks).names == ("input",)


def test_a_node_whose_ranks_are_late_in_turn_is_named_as_a_node():
    # two ranks that share a slow disk: now this one waits, now that one
    runs = frames(4)
    turn = np.random.default_rng(3).random(60) < 0.5
    for rank, late in ((2, turn), (3, ~turn)):
        extra = np.where(late, 120_000_000, 15_000_000)
        runs[rank]["input_ns"] += extra
        runs[rank]["arrival_ns"] += extra
    nodes = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    verdict = s.stragglers(across_ranks(runs, 4), nodes)
    (found,) = verdict.found
    assert (found.scope, found.ranks) == (s.NODE, (2, 3))
    assert found.late_ns == pytest.approx(120e6, rel=0.05)


def test_the_size_of_a_late_node_does_not_grow_with_the_noise_of_its_ranks():
    # 4 % slower node, single steps scatter by 8 %: the latest of two is another 4 % late
    extra = {(rank, "backward"): 8.0 for rank in (2, 3)}
    late = [
        found.late_frac
        for seed in range(20)
        for found in _verdict(4, extra_ms=extra, noise=0.1, seed=seed, steps=200)[1].found
        if found.scope == s.NODE
    ]
    assert late and np.median(late) == pytest.approx(0.04, abs=0.01)


def test_one_slow_rank_does_not_accuse_its_node():
    _, verdict = _verdict(8, extra_ms={(3, "backward"): 80.0})
    assert [(f.scope, f.ranks) for f in verdict.found] == [(s.RANK, (3,))]


def test_two_equal_stragglers_among_eight_are_both_found():
    _, verdict = _verdict(8, per_node=8, extra_ms={(1, "forward"): 30.0, (6, "forward"): 30.0})
    assert sorted(f.ranks for f in verdict.found) == [(1,), (6,)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 32])
def test_healthy_runs_reach_five_percent_in_none_of_forty_seeds(ranks):
    late = [
        found.late_frac
        for seed in range(40)
        for found in _verdict(ranks, seed=seed, noise=0.03)[1].found
    ]
    assert [frac for frac in late if frac >= 0.05] == []


def test_a_rank_that_is_slow_for_a_quarter_of_the_run_is_not_called_persistent():
    slow_then_not = frames(4)
    late = np.zeros(60, dtype=np.int64)
    late[:15] = 60_000_000
    slow_then_not[2]["arrival_ns"] += late
    verdict = s.stragglers(across_ranks(slow_then_not, 4), dict.fromkeys(range(4), "n"))
    assert verdict.found == ()


def test_impact_is_the_share_of_the_step_that_waiting_takes():
    _, verdict = _verdict(4, extra_ms={(3, "backward"): 100.0})
    (found,) = verdict.found
    # the step is 180 + 100 + 20 ms, of which 100 ms are waited for rank 3
    assert found.impact_frac == pytest.approx(100 / 300, abs=0.02)
    low, high = found.impact_frac_ci
    assert low < found.impact_frac < high and high - low < 0.05


@pytest.mark.parametrize(
    ("ranks", "expected", "steps", "reason"),
    [
        (1, 1, 60, "1 of 1 ranks recorded comparable steps"),
        (4, 4, 4, "4 comparable steps; at least 5 are needed"),
        (3, 8, 60, "only 3 of 8 ranks can be compared"),
    ],
)
def test_too_little_is_said_to_be_too_little(ranks, expected, steps, reason):
    verdict = s.stragglers(
        across_ranks(frames(ranks, steps=steps), expected), dict.fromkeys(range(ranks), "n")
    )
    assert (verdict.status, verdict.reason, verdict.found) == ("insufficient", reason, ())


def test_a_rank_that_died_early_does_not_shorten_the_record():
    runs = frames(4)
    runs[2] = runs[2].iloc[:10]
    matrix = across_ranks(runs, 4)
    assert (matrix.ranks, matrix.left_out, len(matrix.steps)) == ((0, 1, 3), (2,), 60)


def test_slow_first_steps_are_left_out_and_counted():
    runs = frames(4)
    for frame in runs.values():
        frame.loc[:2, "arrival_ns"] += 3_000_000_000
    matrix = across_ranks(runs, 4)
    assert (matrix.warm_up, matrix.steps[0]) == (3, 3)


def test_blame_adds_up_and_is_equal_for_equals():
    shares = blame(np.array([[0.0, 10.0, 10.0, -5.0], [0.0, 4.0, 12.0, 1.0]]))
    assert shares[0].tolist() == [0.0, 5.0, 5.0, 0.0]
    assert shares.sum(axis=1).tolist() == pytest.approx([10.0, 12.0])
    # the last 8 are one rank's alone, 3 are shared by two, 1 by three
    assert shares[1].tolist() == pytest.approx([0.0, 1 / 3 + 1.5, 1 / 3 + 1.5 + 8, 1 / 3])


def test_lateness_in_several_phases_at_once_is_unexplained_by_one():
    extra = {(3, p): 20.0 for p in ("input", "h2d", "checkpoint", "eval", "host")}
    matrix, verdict = _verdict(4, extra_ms=extra)
    why = cause(matrix, verdict.found[0], verdict.baseline_ranks)
    assert why.names == ("unexplained",)
    assert why.coverage == pytest.approx(0.2, abs=0.03)


def test_a_rank_whose_steps_are_others_is_left_out_and_not_late():
    runs = {rank: frame.assign(stride=1) for rank, frame in frames(4, noise=0).items()}
    runs[2] = runs[2].iloc[1::2].assign(stride=2, arrival_ns=2 * runs[2]["arrival_ns"])
    matrix = across_ranks(runs, 4)
    assert (matrix.ranks, matrix.left_out, matrix.stride) == ((0, 1, 3), (2,), 1)
    alike = across_ranks({rank: frame.assign(stride=2) for rank, frame in runs.items()}, 4)
    assert (alike.ranks, alike.stride) == ((0, 1, 2, 3), 2)
