"""Unmodified trainings whose only parts are input, one call and Horovod's ranges: what is named.

No nsys: steps from hooks, collectives and operations as the recorder leaves them.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import hpcprof
from hpcprof.analyses import arrivals
from hpcprof.artifacts import manifest
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.reports.document import build_document
from hpcprof.reports.findings_record import findings_record
from hpcprof.reports.html import render_html
from hpcprof.reports.text import render_text
from hpcprof.trace import columns as c
from hpcprof.trace.model import SourceState, Trace, Training
from tests.unit.zero_code_run import MS, TRANSFER_MS, WINDOW, results, write_traces

pytestmark = pytest.mark.unit

COMPUTE = {c.FORWARD, c.BACKWARD, c.OPTIMIZER, c.COMPUTE_PHASE}


def late(run):
    """(ranks, cause, phase) of each rank that is late, by the findings."""
    return [
        (found.ranks, found.cause, found.phase)
        for found in find(run)
        if found.rule == "rank-arrives-late"
    ]


def report(run):
    found = find(run)
    record = findings_record(run, found, list(healthy(run, found)))
    as_read = json.loads(json.dumps(record, allow_nan=False))
    schema = Path(hpcprof.__file__).parent / "reports" / "findings.schema.json"
    jsonschema.validate(as_read, json.loads(schema.read_text(encoding="utf-8")))
    return as_read, build_document(as_read)


def without_collectives(store, rank):
    """As where the recorder was lost on that rank."""
    spans = store.read_spans(rank)
    spans = spans[spans[c.KIND] != c.COLLECTIVE].reset_index(drop=True)
    info = store.rank_info(rank)
    info.sources["recorder"] = SourceState("recorder", manifest.LOST, "the disk was full")
    store.write(Trace(info, spans))


def test_a_rank_whose_collectives_are_lost_is_said_to_lack_them(tmp_path):
    store = write_traces(tmp_path, ranks=2)
    without_collectives(store, 1)
    record, document = report(results(store))
    (found,) = [f for f in record["findings"] if f["rule"] == "stragglers-not-assessed"]
    assert found["evidence"] == [
        "steps of rank 1 were recorded, collectives were not",
        "recorder: the disk was full",
    ]
    assert found["advice"].startswith("have the collectives of rank 1 recorded")
    # the sync of rank 0 is both waiting and transfer, and nobody can tell them apart
    assert "Waiting for rank 1 cannot be told from transfer" in document.tables[0].note
    (text,) = [text for text in record["healthy"] if text.startswith("input keeps up")]
    assert text.startswith("input keeps up: rank 0 (of the others it is not known) waits")


def test_a_single_rank_is_told_by_all_its_steps_and_not_by_a_window_of_collectives(tmp_path):
    store = write_traces(tmp_path, ranks=1)
    spans = store.read_spans(0)
    is_outside = (spans[c.KIND] == c.COLLECTIVE) & ~spans[c.STEP].between(32, 39)
    store.write(Trace(store.rank_info(0), spans[~is_outside].reset_index(drop=True)))
    run = results(store)  # as tf.profiler sees those of a tf.distribute strategy
    assert run.phase_times.steps > 50
    assert (run.collective_form, run.transfer_form) == (arrivals.NONE, arrivals.PROFILER)


def test_a_single_rank_is_no_typical_one(tmp_path):
    slow = results(write_traces(tmp_path / "slow", ranks=1, extra_ms={(0, c.INPUT): 40.0}))
    (found,) = [f for f in find(slow) if f.rule == "all-ranks-wait-for-input"]
    assert found.message.startswith("rank 0 waits for its next batch ")
    assert "over the ranks" not in found.evidence[0]
    fast = results(write_traces(tmp_path / "fast", ranks=1))
    (text,) = [text for text in healthy(fast, find(fast)) if text.startswith("input keeps up")]
    assert text.startswith("input keeps up: the rank waits ")


@pytest.mark.parametrize("phase", [c.FORWARD, c.BACKWARD, c.OPTIMIZER])
def test_a_rank_slow_in_the_call_is_named_with_the_phase_of_the_window(tmp_path, phase):
    run = results(write_traces(tmp_path, extra_ms={(2, phase): 20.0}, in_window_frac=0.2))
    assert late(run) == [((2,), "compute", phase)]
    (finding,) = [found for found in find(run) if found.rule == "rank-arrives-late"]
    assert f"is late in compute ({phase}): " in finding.message
    (cause,) = run.causes
    assert cause.named_steps == tuple(range(11, 30))  # what comes before step 10 was not named
    assert cause.excess_ns[phase] == pytest.approx(20 * MS, rel=0.01)
    lateness = run.stragglers.lateness_ns[2]
    assert sum(cause.excess_ns.values()) == pytest.approx(lateness, rel=0.01)
    assert cause.own_ns[phase] - cause.others_ns[phase] == pytest.approx(24 * MS, rel=0.01)
    assert set(run.phase_times.median_ns[c.FORWARD]) == {0.0}  # of all steps only the call is known


@pytest.mark.parametrize(("piece", "cause"), [(c.INPUT, "input"), ("host", "host")])
def test_a_rank_slow_outside_the_call_is_not_said_to_compute(tmp_path, piece, cause):
    run = results(write_traces(tmp_path, extra_ms={(1, piece): 20.0}, in_window_frac=0.2))
    assert late(run) == [((1,), cause, piece)]


def test_a_healthy_run_accuses_nobody_and_a_slow_window_is_no_fault(tmp_path):
    run = results(write_traces(tmp_path, in_window_frac=0.5))
    assert late(run) == []
    assert {found.level for found in find(run)} == {"info"}
    cost = run.naming_overhead["nvtx"]
    assert (cost.status, cost.first_step, cost.last_step, cost.inside) == ("ok", 10, 29, 20)
    # half of the 100 ms of work and none of the 10.4 ms of transfer and start
    assert cost.overhead_frac == pytest.approx(50 / 110.4, rel=0.01)


def test_a_slow_network_is_the_transfer_and_no_rank(tmp_path):
    run = results(write_traces(tmp_path, transfer_ms=80.0))
    assert late(run) == []
    assert run.collective_form == arrivals.PROFILER
    step_ms = 100.4 + 80.0
    assert run.interconnect.transfer_frac == pytest.approx(80 / step_ms, rel=0.01)
    (finding,) = [found for found in find(run) if found.phase == c.ALLREDUCE]
    assert "transfer takes 44 % of every step" in finding.message
    usual = results(write_traces(tmp_path / "usual"))
    assert usual.interconnect.transfer_ns == TRANSFER_MS * MS
    assert [found for found in find(usual) if found.phase == c.ALLREDUCE] == []


@pytest.mark.parametrize(
    "window",
    [
        lambda _rank: (),  # nobody named anything
        lambda rank: WINDOW if rank < 3 else (),  # not every rank
        lambda rank: WINDOW if rank < 3 else range(30, 50),  # not in the same steps
        lambda _rank: range(10, 14),  # too few
    ],
)
def test_a_window_that_not_all_ranks_have_names_no_phase(tmp_path, window):
    run = results(write_traces(tmp_path, extra_ms={(2, c.FORWARD): 20.0}, window=window))
    assert late(run) == [((2,), "compute", c.COMPUTE_PHASE)]
    (cause,) = run.causes
    assert (cause.named_steps, cause.coverage) == ((), pytest.approx(1.0, abs=0.01))
    (finding,) = [found for found in find(run) if found.rule == "rank-arrives-late"]
    assert any("its phases are not known on every rank" in line for line in finding.evidence)


def test_two_phases_of_the_call_that_are_both_slow_are_both_told(tmp_path):
    extra = {(2, c.FORWARD): 20.0, (2, c.BACKWARD): 25.0}
    run = results(write_traces(tmp_path, extra_ms=extra))
    assert late(run) == [((2,), "compute", c.BACKWARD)]
    (finding,) = [found for found in find(run) if found.rule == "rank-arrives-late"]
    assert "is late in compute: " in finding.message  # neither of them alone
    assert finding.evidence[:2] == (
        "backward takes 85 ms per step there and 60 ms on the other ranks",
        "forward takes 50 ms per step there and 30 ms on the other ranks",
    )


def test_a_window_in_which_the_rank_is_not_slow_names_no_phase(tmp_path):
    def slow_outside(rank, _phase, step):
        return 20.0 if rank == 2 and step not in WINDOW else 0.0

    run = results(write_traces(tmp_path, steps=90, extra_in_step_ms=slow_outside))
    assert late(run) == [((2,), "compute", c.COMPUTE_PHASE)]


def test_without_any_call_the_window_tells_operations_from_python(tmp_path):
    # an eager loop: operations are started one by one, and nothing marks a call
    run = results(write_traces(tmp_path, extra_ms={(2, c.BACKWARD): 20.0}, call=False))
    assert late(run) == [((2,), "compute", c.BACKWARD)]
    unnamed = results(
        write_traces(
            tmp_path / "unnamed",
            extra_ms={(2, c.BACKWARD): 20.0},
            call=False,
            window=lambda _rank: (),
        )
    )
    assert late(unnamed) == [((2,), "host", "host")]


def test_without_collectives_lateness_is_not_measured_and_not_healthy(tmp_path):
    run = results(write_traces(tmp_path, extra_ms={(2, c.FORWARD): 20.0}, collectives=False))
    assert (run.collective_form, run.stragglers.status) == (arrivals.NONE, "insufficient")
    record, document = report(run)
    assert {found["status"] for found in record["findings"]} <= {"insufficient", "not_collected"}
    assert not any("balanced" in text for text in record["healthy"])
    assert "stragglers-not-assessed" in {found["rule"] for found in record["findings"]}
    (parts,) = document.tables  # where each rank's own step goes is known all the same
    assert parts.heads == ("rank", "node", "recorded", "input", "compute", "host")
    assert [row[3:] for row in parts.rows] == [
        *[("2", "105", "3")] * 2,
        ("2", "125", "3"),
        ("2", "105", "3"),
    ]
    assert "Each rank for itself" in parts.note
    assert "each rank for itself" in dict(document.facts)["step"]
    assert parts.rows[0][2] == "OK"
    recorded = next(table for table in document.appendix if table.title == "what was recorded")
    assert "0 of 4 recorded ranks are compared in the verdict" in recorded.note


def test_without_collectives_a_rank_that_waits_for_input_is_not_hidden_by_the_others(tmp_path):
    usual = results(write_traces(tmp_path / "usual", collectives=False))
    assert [text for text in healthy(usual, find(usual)) if text.startswith("input keeps up")] == [
        "input keeps up: the rank that waits longest waits 1.8 % of the step for its batch"
    ]
    slow = results(write_traces(tmp_path, extra_ms={(1, c.INPUT): 20.0}, collectives=False))
    assert not any(text.startswith("input keeps up") for text in healthy(slow, find(slow)))


def test_of_a_single_rank_the_step_is_told_and_its_input_judged(tmp_path):
    extra = {(0, c.INPUT): 20.0}
    run = results(write_traces(tmp_path, ranks=1, extra_ms=extra, collectives=False))
    assert run.phase_times.step_ns == pytest.approx(130.4 * MS, rel=0.01)
    (finding,) = [found for found in find(run) if found.level != "info"]
    assert finding.rule == "all-ranks-wait-for-input"
    assert finding.impact_frac == pytest.approx(22 / 130.4, rel=0.01)


def test_the_report_says_what_is_inside_the_step_and_what_naming_costs(tmp_path):
    training = Training(
        hooks={"keras": "attached", "horovod": "failed: no _allreduce_grads"},
        op_steps="10-29",
    )
    store = write_traces(
        tmp_path, extra_ms={(2, c.BACKWARD): 20.0}, in_window_frac=0.3, training=training
    )
    record, document = report(results(store))
    facts = dict(document.facts)
    assert facts["inside"].startswith("steps 10-29, 20 of 60: forward 24 % of the step, backward")
    assert "(they overlap)" in facts["inside"] and "none of them" not in facts["inside"]
    assert facts["profiler"].startswith("naming operations costs +28 % of a step [28–28] (95 %")
    text = render_text(document)
    assert "those of 19 steps\n             (11-29) with named operations" in text
    inside = next(table for table in document.appendix if table.title.startswith("inside"))
    assert inside.heads == (
        *("rank", "from", "steps", "step"),
        *("forward", "backward", "allreduce", "optimizer", "in none"),
    )
    assert inside.rows[2][:6] == ("2", "NVTX recorder", "10-29", "162.5", "39.0", "104.0")
    assert "backward 16 %" in inside.note
    recorded = next(table for table in document.appendix if table.title == "what was recorded")
    (row,) = recorded.rows
    assert row[recorded.heads.index("detail")] == "steps; operations 10-29"
    assert row[-1] == "hook horovod failed: no _allreduce_grads"
    page = render_html(document, record, None)
    assert "Inside the step, median ms" in page and "hook horovod failed" in page


def test_what_cannot_be_told_apart_is_said_with_the_reason(tmp_path):
    training = Training(
        input_not_separable="steps_per_execution is 8",
        phases_not_separable="jit_compile: the step is one XLA cluster",
        op_steps="not available: TensorFlow's CPU wheel holds no NVTX",
    )
    store = write_traces(
        tmp_path,
        window=lambda _rank: (),
        training=training,
        input_marked=False,
    )
    _, document = report(results(store))
    texts = [text for label, text in document.remarks if label == "not measured"]
    assert (
        "forward, backward and optimizer inside the step of ranks 0-3: jit_compile: the step is "
        "one XLA cluster"
    ) in texts
    assert (
        "operations inside the step of ranks 0-3: not available: TensorFlow's CPU wheel holds no "
        "NVTX"
    ) in texts
    assert (
        "whether the input keeps up: the wait for it is not told apart (steps_per_execution is 8)"
    ) in texts
    recorded = next(table for table in document.appendix if table.title == "what was recorded")
    assert recorded.rows[0][recorded.heads.index("detail")] == "steps only"


def test_named_steps_lie_between_named_steps_only(tmp_path):
    store = write_traces(tmp_path, window=lambda _rank: (5, 6, 7, 20, 22, 23))
    spans = store.read_spans(0, arrivals.COLUMNS_READ, arrivals.KINDS_READ)
    frame = arrivals.named_steps(spans, arrivals.PROFILER)
    assert frame.index.tolist() == [6, 7, 23]
    whole = arrivals.per_rank(spans, arrivals.PROFILER).loc[frame.index]
    assert frame["arrival_ns"].tolist() == whole["arrival_ns"].tolist()
    for table in (frame, whole):
        pieces = sum(table[f"{piece}_ns"] for piece in arrivals.ALL_PIECES)
        assert pieces.tolist() == table["arrival_ns"].tolist()
    # 0.4 ms of each call come before the first operation, and only those are left of it
    assert (frame["compute_ns"] / MS).round(2).tolist() == [0.4, 0.4, 0.4]
    inside = sum(frame[f"{piece}_ns"] for piece in COMPUTE)
    assert inside.tolist() == whole["compute_ns"].tolist()


def test_an_operation_of_the_allreduce_is_no_marked_allreduce(tmp_path):
    store = write_traces(tmp_path, collectives=False)
    spans = store.read_spans(0, arrivals.COLUMNS_READ, arrivals.KINDS_READ)
    spans[c.PHASE] = spans[c.PHASE].where(spans[c.PHASE] != c.OTHER, c.ALLREDUCE)
    assert arrivals.collective_forms(spans) == set()


def test_the_cost_of_naming_and_of_tf_profiler_are_told_apart(tmp_path):
    run = results(
        write_traces(
            tmp_path,
            steps=90,
            window=lambda _rank: range(10, 30),
            in_window_frac=0.2,
            tf_window=range(30, 40),
            in_tf_frac=0.6,
        )
    )
    naming, traced = run.naming_overhead["nvtx"], run.naming_overhead["tf_profiler"]
    work, step = 100.0, 110.4
    # steps 30-39 come right after the window and are not among those compared with
    assert naming.overhead_frac == pytest.approx(0.2 * work / step, rel=0.01)
    assert (naming.inside, naming.each_side, naming.first_step) == (20, 9, 10)
    # rank 0 was recorded, so that the others wait for it
    assert traced.overhead_frac == pytest.approx(0.6 * work / step, rel=0.02)
    assert (traced.inside, traced.first_step, set(traced.by_rank)) == (10, 30, {0})
    assert run.named.nvtx == dict.fromkeys(range(4), (10, 29))
    assert run.named.tf_profiler == {0: (30, 39)}
    _, document = report(run)
    text = " ".join(line for _, line in document.facts)
    assert "naming operations costs +18 % of a step" in text
    assert "tf.profiler costs +54 % of a step" in text
    recorded = next(table for table in document.appendix if table.title == "what was recorded")
    details = {row[0]: row[recorded.heads.index("detail")] for row in recorded.rows}
    assert details == {
        "0": "steps; operations 10-29; tf.profiler 30-39",
        "1-3": "steps; operations 10-29",
    }


def test_two_that_were_at_work_in_the_same_steps_are_not_told_apart(tmp_path):
    store = write_traces(tmp_path, in_window_frac=0.2, tf_window=WINDOW, in_tf_frac=0.6)
    run = results(store)
    assert {cost.status for cost in run.naming_overhead.values()} == {"insufficient"}
    assert all("0 before and 0 after" in cost.reason for cost in run.naming_overhead.values())


def test_a_cost_that_is_smaller_than_the_change_over_the_run_is_not_told(tmp_path):
    def slower_later(_rank, _phase, step):
        return 40.0 if step >= 30 else 0.0

    run = results(write_traces(tmp_path, in_window_frac=0.05, extra_in_step_ms=slower_later))
    _, document = report(run)
    (note,) = [text for label, text in document.facts if label == "profiler"]
    assert note.startswith("what naming operations costs cannot be told here: the steps just after")
    assert "+" not in note


def test_steps_that_are_shorter_with_naming_are_no_negative_cost(tmp_path):
    def faster_in_window(_rank, _phase, step):
        return 0.0 if step in WINDOW else 40.0

    run = results(write_traces(tmp_path, extra_in_step_ms=faster_in_window))
    assert run.naming_overhead["nvtx"].overhead_frac == pytest.approx(-40 / 150.4, rel=0.01)
    _, document = report(run)
    (note,) = [text for label, text in document.facts if label == "profiler"]
    assert "cannot be told here: the recorded steps are shorter than those around them" in note


def test_what_operations_started_on_a_gpu_is_told_by_phase(tmp_path):
    extra = {(1, c.BACKWARD): 30.0}
    store = write_traces(tmp_path, ranks=2, extra_ms=extra, on_gpu=True)
    run = results(store)
    # kernels of 30 ms forward: 10-15, 30-40 and 20-25 ms after its start
    assert run.op_phases.device_ns[0][c.FORWARD] == pytest.approx(20 * MS, rel=0.01)
    assert run.op_phases.device_ns[0][c.BACKWARD] == pytest.approx(40 * MS, rel=0.01)
    assert run.op_phases.device_ns[1][c.BACKWARD] == pytest.approx(60 * MS, rel=0.01)
    assert late(run) == [((1,), "compute", c.BACKWARD)]
    record, document = report(run)
    assert set(record["operations"]["device_ns"]) == {"0", "1"}
    said = [text for label, text in document.facts if label == ""]
    assert said[0].startswith(
        "the GPU works per step, median of the ranks: forward 20 ms, backward"
    )
    table = next(t for t in document.appendix if t.title == "the GPU, per step, ms")
    assert table.heads == ("rank", "forward", "backward", "optimizer")
    assert table.rows == (("0", "20.0", "40.0", "3.3"), ("1", "20.0", "60.0", "3.3"))


def test_without_a_gpu_nothing_is_said_of_one(tmp_path):
    run = results(write_traces(tmp_path))
    assert dict(run.op_phases.device_ns) == {}
    _, document = report(run)
    assert not any("GPU works" in text for _, text in document.facts)
    assert "the GPU, per step, ms" not in {table.title for table in document.appendix}
