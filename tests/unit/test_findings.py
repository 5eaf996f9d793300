"""One case per rule: what fires, with which content, and what stays quiet. Counts are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.analyses import arrivals
from hpcprof.analyses.busy_steps import BusySteps
from hpcprof.analyses.node_reads import NodeReads, ReadTimes
from hpcprof.analyses.phase_times import phase_times
from hpcprof.analyses.run_results import JobEnd
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.stragglers import stragglers
from hpcprof.artifacts import manifest
from hpcprof.findings import RULES, find
from hpcprof.findings.healthy import healthy
from hpcprof.trace.model import SourceState
from tests.unit.results_builder import rank_info, results
from tests.unit.synthetic_run import frames

pytestmark = pytest.mark.unit


def summary(found):
    return [(f.rule, f.level, f.status, f.ranks, f.cause) for f in found]


def test_a_healthy_run_accuses_nobody_and_says_what_is_healthy():
    run = results()
    found = find(run)
    # the only thing to say is what was not measured: the order of events between nodes
    assert summary(found) == [("order-between-nodes-unknown", "info", "not_resolvable", (), None)]
    assert "between nodes less than 40 ms apart" in found[0].message
    balanced, keeps_up = healthy(run, found)
    assert balanced.startswith("ranks balanced: none of 4 ranks is late for good (spread 0.")
    assert keeps_up == "input keeps up: the typical rank waits 1.0 % of the step for its batch"


def test_a_slow_node_is_one_finding_with_cause_cost_and_advice():
    run = results(extra_ms={(2, "input"): 80.0, (3, "input"): 80.0})
    first, *others = find(run)
    assert summary([first]) == [("rank-arrives-late", "critical", "ok", (2, 3), "input")]
    assert [f.rule for f in others] == ["order-between-nodes-unknown"]
    assert first.message == (
        "node node1 is late in input: its 2 ranks reach the allreduce 80.4 ms late "
        "in 100 % of steps"
    )
    assert first.impact_frac == pytest.approx(80 / 282, abs=0.01)
    assert "--exclude=node1" in first.advice
    assert first.evidence[0] == "input takes 81.8 ms per step there and 2 ms on the other ranks"
    assert not [s for s in healthy(run, [first]) if s.startswith("ranks balanced")]


MS = 1e6
SLOW_RANK = {(2, "input"): 80.0}
FAST = ReadTimes(12, 0.3 * MS, 0.9 * MS)
SLOW = ReadTimes(12, 48 * MS, 70 * MS)


def _read_by(*times: ReadTimes, slow: tuple[str, ...] = ()) -> NodeReads:
    return NodeReads({f"node{i}": found for i, found in enumerate(times)}, slow)


def _sentences(finding):
    return [text for text in finding.evidence if "test read" in text]


def test_a_rank_on_a_node_that_reads_slowly_is_kept_and_the_node_is_to_be_mended():
    run = results(ranks=8, extra_ms=SLOW_RANK)
    without = find(run)[0]
    first = find(replace(run, reads=_read_by(FAST, SLOW, FAST, FAST, slow=("node1",))))[0]
    assert _sentences(first) == [
        "test reads of the data set take 48 ms on node node1 and 300 µs on the other nodes "
        "(12 and 36 reads)"
    ]
    assert first.advice == (
        "compare how fast this node reads the data set with another node; until it is mended leave "
        "it out (sbatch --exclude=node1) and tell your admins. Were only this rank replaced, the "
        "node's other ranks would be late next, unless this one reads far more data than they do"
    )
    measured = replace(without, evidence=first.evidence, advice=first.advice)
    assert first == measured
    assert (first.ranks, first.level) == ((2,), "critical")


def test_the_only_rank_of_a_slow_node_has_no_neighbours_that_would_be_next():
    run = results(ranks=8, per_node=1, extra_ms=SLOW_RANK)
    first = find(replace(run, reads=_read_by(FAST, FAST, SLOW, slow=("node2",))))[0]
    assert first.ranks == (2,)
    assert first.advice.endswith("(sbatch --exclude=node2) and tell your admins")


def test_reads_as_fast_as_elsewhere_clear_the_file_system_and_the_rank_is_looked_at():
    run = results(ranks=8, extra_ms=SLOW_RANK)
    first = find(replace(run, reads=_read_by(FAST, FAST, FAST, FAST)))[0]
    assert _sentences(first) == [
        "test reads of the data set take 300 µs on node node1 and on the other nodes "
        "(12 and 36 reads): not the file system as a whole"
    ]
    assert first.advice.startswith("look at this rank's share of the data")


def test_a_node_that_is_now_and_then_slow_is_neither_accused_nor_cleared():
    run = results(extra_ms=SLOW_RANK)
    at_times = replace(FAST, high_ns=70 * MS, median_ns=0.4 * MS)
    first = find(replace(run, reads=_read_by(FAST, at_times)))[0]
    assert _sentences(first) == [
        "test reads of the data set take 400 µs on node node1 and 300 µs on the other node "
        "(12 and 12 reads)"
    ]
    assert first.advice.startswith("look at this rank's share of the data")


@pytest.mark.parametrize(
    ("reads", "sentences"),
    [
        (
            NodeReads(),
            ["no test reads to compare nodes by (they need data_dir and the node agent)"],
        ),
        (
            _read_by(FAST),
            ["too few test reads to compare nodes by: fewer than 3 on node node1"],
        ),
        (
            _read_by(replace(FAST, count=2), SLOW),
            ["too few test reads to compare nodes by: fewer than 3 on the other node"],
        ),
        (
            _read_by(FAST, ReadTimes(errors=7)),
            [
                "too few test reads to compare nodes by: fewer than 3 on node node1",
                "7 test reads of the data set failed on node node1",
            ],
        ),
    ],
)
def test_reads_that_were_not_measured_are_said_and_change_no_advice(reads, sentences):
    first = find(replace(results(extra_ms=SLOW_RANK), reads=reads))[0]
    assert _sentences(first) == sentences
    assert first.advice.startswith("look at this rank's share of the data")


def test_reads_are_told_of_no_other_cause_and_not_where_there_is_one_node():
    reads = _read_by(FAST, SLOW, slow=("node1",))
    computing = find(replace(results(extra_ms={(2, "backward"): 80.0}), reads=reads))[0]
    assert (computing.cause, _sentences(computing)) == ("compute", [])
    assert "look for what takes this rank's processor" in computing.advice
    alone = find(results(per_node=4, extra_ms=SLOW_RANK))[0]
    assert (alone.cause, _sentences(alone)) == ("input", [])


def test_test_reads_are_no_finding_and_no_sentence_of_their_own():
    run = replace(results(), reads=_read_by(FAST, SLOW, slow=("node1",)))
    assert summary(find(run)) == summary(find(results()))
    assert list(healthy(run, find(run))) == list(healthy(results(), find(results())))


def test_levels_follow_the_lateness():
    levels = {
        extra: [f.level for f in find(results(extra_ms={(1, "backward"): extra})) if f.impact_frac]
        for extra in (1.0, 6.0, 14.0, 60.0)
    }
    assert levels == {1.0: [], 6.0: ["info"], 14.0: ["warn"], 60.0: ["critical"]}


def test_input_slow_everywhere_is_one_finding_and_no_rank_is_accused():
    run = results(extra_ms={(rank, "input"): 60.0 for rank in range(4)})
    first, *others = find(run)
    assert summary([first]) == [
        ("all-ranks-wait-for-input", "critical", "ok", (0, 1, 2, 3), "input")
    ]
    assert first.impact_frac == pytest.approx(62 / 260, abs=0.01)
    assert [f.rule for f in others] == ["order-between-nodes-unknown"]


def of_steps(steps, ranks=4, busy=BusySteps(), input_ms=60.0):  # noqa: B008
    """A run in which this many steps could be compared, and everybody waits for input."""
    slow = {(rank, "input"): input_ms for rank in range(ranks)}
    matrix = across_ranks(frames(ranks, steps, extra_ms=slow), ranks)
    matrix = replace(matrix, busy=busy)
    nodes = {rank: f"node{rank}" for rank in range(ranks)}
    run = results(
        ranks, stragglers=stragglers(matrix, nodes), phase_times=phase_times(matrix), busy=busy
    )
    return run, {f.rule: (f.level, f.status, f.message) for f in find(run)}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("input_ms", [0.0, 60.0])
def test_of_too_few_steps_the_input_is_neither_accused_nor_called_healthy(ranks, input_ms):
    run, found = of_steps(4, ranks, input_ms=input_ms)
    assert run.phase_times.steps == 4
    assert "all-ranks-wait-for-input" not in found
    assert found["input-not-assessed"] == (
        *("info", "not_collected"),
        "whether the input keeps up: 4 comparable steps; at least 5 are needed",
    )
    assert not any("input" in text for text in healthy(run, find(run)))


@pytest.mark.parametrize("input_ms", [0.0, 60.0])
def test_beside_steps_in_which_nsys_was_at_work_a_short_rest_is_no_judge_of_the_input(input_ms):
    run, found = of_steps(7, busy=BusySteps(tuple(range(8, 40)), 7), input_ms=input_ms)
    assert (run.phase_times.steps, run.phase_times.ranks) == (0, ())
    assert "all-ranks-wait-for-input" not in found
    assert found["input-not-assessed"] == (
        *("info", "not_collected"),
        "how long a step takes and where it goes, what the transfer takes, and whether the input "
        "keeps up: a profiler was starting, stopping or writing in 32 of 39 comparable steps; the "
        "other 7 say too little",
    )
    assert not any("input" in text for text in healthy(run, find(run)))


def test_a_training_that_marks_no_input_is_not_called_healthy_in_it():
    run, found = of_steps(40, input_ms=-2.0)  # the ordinary wait of these frames is 2 ms
    assert set(run.phase_times.median_ns["input"]) == {0.0}
    assert found["input-not-assessed"] == (
        *("info", "not_collected"),
        "whether the input keeps up: the training marks no wait for its next batch",
    )
    assert not any("input" in text for text in healthy(run, find(run)))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(("steps", "level"), [(5, "warn"), (14, "warn"), (15, "critical")])
def test_a_wait_for_input_is_critical_only_over_enough_steps(ranks, steps, level):
    run, found = of_steps(steps, ranks)
    assert run.phase_times.steps == steps
    assert found["all-ranks-wait-for-input"][0] == level
    assert "input-not-assessed" not in found


def test_missing_and_empty_ranks_are_named_and_not_called_healthy():
    run = results()
    lost = {
        name: SourceState(name, manifest.LOST, "killed at its start") for name in ("spans", "nsys")
    }
    ranks = (*run.ranks[:2], replace(run.ranks[2], sources=lost, reason="killed at its start"))
    found = find(replace(run, ranks=ranks, missing=(3,)))
    assert ("ranks-missing", "warn", "not_collected", (2, 3), None) in summary(found)
    (missing,) = [f for f in found if f.rule == "ranks-missing"]
    assert missing.message.startswith("ranks 2-3 of 4 left nothing that can be used")


def _ended(run, rank, exit_code, ended=True):
    info = replace(run.ranks[rank], exit_code=exit_code)
    info = info if ended else replace(info, ended=None)
    return replace(run, ranks=(*run.ranks[:rank], info, *run.ranks[rank + 1 :]))


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [
        (137, "rank 2 (node node1) was ended by SIGKILL after step 60"),
        (-9, "rank 2 (node node1) was ended by SIGKILL after step 60"),
        (7, "rank 2 (node node1) failed with exit code 7 after step 60"),
        (127, "rank 2 (node node1) failed with exit code 127 (the command was not found)"),
    ],
)
def test_a_killed_or_failed_rank_is_named(exit_code, message):
    run = _ended(results(), 2, exit_code)
    (early,) = [f for f in find(run) if f.rule == "job-ended-early"]
    assert early.message.startswith(message)


def test_the_rank_that_failed_is_named_and_not_those_slurm_ended_after_it():
    run = _ended(_ended(_ended(results(), 2, 137), 0, 143), 1, 143)
    assert [f.ranks for f in find(run) if f.rule == "job-ended-early"] == [(2,)]


def test_the_time_limit_is_told_by_slurm():
    run = results(job_end=JobEnd("TIMEOUT", "0:0", 61, 60))
    for rank in range(4):
        run = _ended(run, rank, None, ended=False)
    (early,) = [f for f in find(run) if f.rule == "job-ended-early"]
    assert early.cause == "time limit"
    assert early.message == ("the job reached its time limit of 60 s: Slurm ended it after step 60")


def test_ranks_without_an_end_record_are_not_taken_for_finished():
    run = _ended(results(), 1, None, ended=False)
    (early,) = [f for f in find(run) if f.rule == "job-ended-early"]
    assert early.message.startswith("rank 1 left no end record after step 60: killed together")


def test_a_lost_report_is_named_and_its_rank_is_not_measured():
    run = results()
    infos = list(run.ranks)
    infos[1] = rank_info(1, "node0", 4, nsys=manifest.LOST)
    infos[1].sources["nsys"] = SourceState("nsys", manifest.LOST, "killed while recording")
    found = find(replace(run, ranks=tuple(infos), collective_form=arrivals.MARKED))
    messages = [f.message for f in found]
    assert messages[0] == "nsys is LOST on rank 1: killed while recording"
    assert any(
        m.startswith("operating system calls, MPI calls and GPU kernels of rank 1")
        for m in messages
    )
    assert any("only the marked allreduce phase is known" in m for m in messages)


def test_too_few_steps_is_said():
    run = results()
    short = replace(run.stragglers, status="insufficient", reason="3 comparable steps", found=())
    found = find(replace(run, stragglers=short, causes=()))
    assert ("stragglers-not-assessed", "info", "insufficient", (), None) in summary(found)


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_says_what_it_is_and_when_it_fires(name):
    doc = RULES[name].__doc__ or ""
    assert doc.splitlines()[0].endswith(".")
    assert "Fires:" in doc and "Stays quiet:" in doc
