"""Runs with a capture window, a busy profiler, hangs: files in, verdict out."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import hpcprof
from hpcprof import pipeline
from hpcprof.artifacts import span_format as fmt
from hpcprof.cli.main import main
from hpcprof.reports.document import build_document
from hpcprof.reports.text import render_text
from tests.unit.nsys_export import Export
from tests.unit.run_writer import edit_manifest, step_times, write_run

pytestmark = pytest.mark.unit

NS_PER_MS = 1_000_000
SCHEMA = Path(hpcprof.__file__).parent / "reports" / "findings.schema.json"


def collect(folder):
    record = pipeline.collect(folder).record
    jsonschema.validate(record, json.loads(SCHEMA.read_text(encoding="utf-8")))
    return record


def rules(record):
    return [f["rule"] for f in record["findings"] if f["status"] == "ok"]


def ten_times(rank, phase, step, *, slow):
    return 1700.0 if rank == 2 and phase == "backward" and step in slow else 0.0


def slow_run(folder, steps, slow):
    """Rank 2 takes ten times as long in the steps ``slow``."""
    return write_run(
        folder,
        steps=steps,
        extra_in_step_ms=lambda rank, phase, step: ten_times(rank, phase, step, slow=slow),
    )


def mark_busy(paths, rank, steps, why="nsys stop"):
    times = step_times(paths, rank)
    edit_manifest(paths, rank, profiler_busy=[[*times[step], why] for step in steps])


def test_steps_in_which_nsys_was_at_work_accuse_nobody(tmp_path):
    slow = range(10, 110)  # of 130: longer than the rest, as when a large report is written
    paths = slow_run(tmp_path / "marked", 130, slow)
    mark_busy(paths, 2, slow)
    record = collect(tmp_path / "marked")
    assert rules(record) == []
    assert any(text.startswith("ranks balanced: none of 4 ranks") for text in record["healthy"])
    assert record["run"]["steps_used"] == 29
    assert record["run"]["step_ns"] == pytest.approx(192e6, rel=0.01)
    assert record["quality"]["busy_steps"] == {"steps": list(slow), "left": 29}
    assert record["interconnect"]["steps"] == 30  # step 0 has a transfer, but no way to it
    # the same steps without these marks are a rank that is late for good
    slow_run(tmp_path / "unmarked", 130, slow)
    unmarked = collect(tmp_path / "unmarked")
    late = [f for f in unmarked["findings"] if f["rule"] == "rank-arrives-late"]
    assert [f["ranks"] for f in late] == [[2]]


def test_a_rank_that_is_slow_besides_is_named_all_the_same(tmp_path):
    paths = write_run(
        tmp_path,
        steps=60,
        extra_ms={(3, "backward"): 60.0},
        extra_in_step_ms=lambda *at: ten_times(*at, slow=range(20, 30)),
    )
    mark_busy(paths, 2, range(20, 30))
    record = collect(tmp_path)
    late = [f for f in record["findings"] if f["rule"] == "rank-arrives-late"]
    assert [f["ranks"] for f in late] == [[3]]
    assert late[0]["impact_frac"] == pytest.approx(60 / 252, abs=0.01)


def test_a_step_between_two_is_busy_too_when_annotate_says_so(tmp_path):
    paths = write_run(tmp_path, steps=40)
    (_, end), (begin, _) = (step_times(paths, 1)[step] for step in (20, 21))
    content = paths.spans(1).read_bytes()
    name = fmt.name_blocks(99, "profiler stop")
    content += name + fmt.RECORD.pack(end, begin + 1, 99, 20, 77, fmt.KIND_BUSY, 0)
    paths.spans(1).write_bytes(content)
    record = collect(tmp_path)
    assert record["quality"]["busy_steps"]["steps"] == [21]
    text = render_text(build_document(record))
    assert "profiler     1 step left out (21): nsys started, stopped or wrote its report" in text


def test_with_too_few_other_steps_nothing_is_said_of_ranks_and_transfer(tmp_path):
    slow = range(8, 40)
    paths = slow_run(tmp_path, 40, slow)
    mark_busy(paths, 2, slow)
    record = collect(tmp_path)
    assert rules(record) == []
    assert not any(text.startswith("ranks balanced") for text in record["healthy"])
    (found,) = [f for f in record["findings"] if f["rule"] == "stragglers-not-assessed"]
    assert (found["status"], found["message"]) == (
        "insufficient",
        "whether a rank is late cannot be said: a profiler was starting, stopping or writing in 32 "
        "of 39 comparable steps; the other 7 say too little",
    )
    assert record["interconnect"]["transfer_ns"] is None


@pytest.mark.parametrize("odd", [(), (25, 50)])
def test_two_steps_beside_a_report_that_was_written_do_not_judge_the_input(tmp_path, odd):
    paths = write_run(
        tmp_path,
        steps=61,
        extra_in_step_ms=lambda rank, phase, step: (
            220.0 if phase == "input" and step in odd else 0.0
        ),
    )
    for rank in range(4):
        mark_busy(paths, rank, [step for step in range(1, 61) if step not in (25, 50)])
    record = collect(tmp_path)
    assert rules(record) == []
    assert not any("input" in text for text in record["healthy"])
    assert (record["run"]["step_ns"], record["run"]["steps_used"]) == (None, 0)
    assert record["phases"] == {"ranks": [], "lateness_ns": [], "median_ns": {}}
    text = " ".join(render_text(build_document(record)).split())
    assert "step unknown: too few steps could be compared across ranks" in text
    assert (
        "whether the input keeps up: a profiler was starting, stopping or writing in 58 of 60 "
        "comparable steps; the other 2 say too little"
    ) in text.split("not measured")[1]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"profiler_busy": "x"}, ["profiler_busy"]),
        (
            {"profiler_busy": [[1, 0, "x"]], "gpus": 3, "horovod_size": -1, "hangs": 7},
            ["gpus", "hangs", "horovod_size", "profiler_busy"],
        ),
        ({"profiler_busy": None, "hangs": None, "nvtx_version": 3}, []),
    ],
)
def test_damaged_notes_cost_no_verdict(tmp_path, damage, told):
    paths = write_run(tmp_path, extra_ms={(2, "backward"): 60.0})
    for rank in range(4):
        edit_manifest(paths, rank, **damage)
    record = collect(tmp_path)
    assert rules(record) == ["rank-arrives-late"]
    messages = [f["message"] for f in record["findings"] if f["rule"] == "recording-incomplete"]
    assert [text.split()[2] for text in messages] == told
    assert all(text.startswith("ranks 0-3: ") for text in messages)


def test_a_run_of_an_earlier_version_reads_as_before(tmp_path):
    paths = write_run(tmp_path)
    new = ("profiler_busy", "gpus", "horovod_size", "nvtx_version", "hangs")
    for rank in range(4):
        content = json.loads(paths.manifest(rank).read_text())
        paths.manifest(rank).write_text(
            json.dumps({key: value for key, value in content.items() if key not in new})
        )
    record = collect(tmp_path)
    assert rules(record) == []
    assert record["quality"]["busy_steps"] == {"steps": [], "left": 39}
    assert "profiler" not in render_text(build_document(record)).split("healthy")[0]
    # and so does the record that an earlier version made of it
    for key in ("busy_steps", "profiler_overhead", "transfer_collectives"):
        del record["quality"][key]
    for info in record["quality"]["ranks"]:
        for key in ("gpus", "horovod_size", "hangs"):
            del info[key]
    jsonschema.validate(record, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert "ranks balanced" in render_text(build_document(record))


def record_window(paths, ranks, window, *, payload=1_000_000):
    """A report of ``window`` on each rank: our steps, and two allreduces per step."""
    first, last = window
    for rank in range(ranks):
        times = step_times(paths, rank)
        origin = times[first][0] - NS_PER_MS
        made = Export().domain(1, "hpcprof").domain(2, "HorovodOps")
        for step in range(first, last + 1):
            begin, end = (moment - origin for moment in times[step])
            made.beacon(step, origin, begin + 100_000, 4_000)
            made.range(begin, end, f"step {step}", 1)
            for i in (0, 1):
                start = end - 21 * NS_PER_MS - (1 - i) * 10 * NS_PER_MS
                made.range(start, end, "HorovodAllreduce", 2, kind=60, payload=payload)
        made.save(paths.nsys_sqlite(rank))
        edit_manifest(paths, rank, profiler={"name": "nsys", "version": "2022.4.2"})


def test_of_a_window_the_whole_run_is_judged_and_the_transfer_by_the_profiler(tmp_path):
    paths = write_run(
        tmp_path,
        steps=100,
        extra_ms={(1, "backward"): 60.0},
        extra_in_step_ms=lambda rank, phase, step: (
            10.0 if phase == "forward" and 30 <= step <= 69 else 0.0
        ),
    )
    record_window(paths, 4, (30, 69))
    record = collect(tmp_path)
    assert record["run"]["steps_used"] == 99
    quality = record["quality"]
    assert (quality["collectives"], quality["transfer_collectives"]) == ("marked", "profiler")
    assert (record["interconnect"]["steps"], record["interconnect"]["collectives"]) == (40, 80)
    assert record["run"]["payload_bytes"] == 2_000_000
    late = [f for f in record["findings"] if f["rule"] == "rank-arrives-late"]
    assert [f["ranks"] for f in late] == [[1]]
    cost = quality["profiler_overhead"]
    assert (cost["status"], cost["inside"], cost["each_side"]) == ("ok", 40, 29)
    assert cost["overhead_frac"] == pytest.approx(10 / 252, abs=0.001)
    text = render_text(build_document(record), width=200)
    assert (
        "profiler     nsys recorded steps 30-69\n             overhead +4.0 % of a step [" in text
    )
    assert "(95 % interval; 40 of the recorded steps against 29 just before and 29 just" in text


def test_a_window_that_no_rank_reached_is_told_clearly(tmp_path):
    paths = write_run(tmp_path)
    why = "the training never reached the range to record"
    for rank in range(4):
        edit_manifest(
            paths, rank, profiler={"name": "nsys"}, state="EMPTY", state_reason=f"{why} (500-539)"
        )
    record = collect(tmp_path)
    (told,) = [f for f in record["findings"] if f["rule"] == "recording-incomplete"]
    assert (told["level"], told["status"]) == ("warn", "not_collected")
    assert told["message"] == f"nsys is EMPTY on ranks 0-3: {why} (500-539)"
    assert record["run"]["steps_used"] == 39


def test_a_hang_is_told_with_the_rank_that_was_late(tmp_path):
    paths = write_run(
        tmp_path,
        steps=60,
        extra_in_step_ms=lambda rank, phase, step: (
            700_000.0 if (rank, phase, step) == (2, "input", 40) else 0.0
        ),
    )
    for rank in (0, 1, 3):
        at = {"realtime_ns": 1, "monotonic_ns": step_times(paths, rank)[39][1] + 610 * 10**9}
        note = {"step": 39, "seconds": 610.0, "at": at}
        edit_manifest(paths, rank, hangs=[note])
    record = collect(tmp_path)
    (found,) = [f for f in record["findings"] if f["status"] == "ok"]
    assert (found["rule"], found["level"], found["ranks"]) == ("training-hung", "warn", [2])
    assert found["evidence"] == [
        "stacks in ranks/00000/stacks.txt, ranks/00001/stacks.txt, ranks/00003/stacks.txt"
    ]
    assert record["quality"]["ranks"][0]["hangs"] == [{"step": 39, "seconds": 610.0}]


def test_a_hang_that_ended_the_job_makes_collect_fail_on_critical(tmp_path, capsys):
    paths = write_run(tmp_path)
    for rank in range(4):
        notes = [{"step": 39, "seconds": 610.0, "at": None}]
        edit_manifest(paths, rank, hangs=notes, ended=None, exit_code=None)
    assert main(["collect", str(tmp_path), "--fail-on", "critical"]) == 1
    assert "and none came any more" in " ".join(capsys.readouterr().out.split())


def test_ranks_that_train_alone_are_not_called_late(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "backward"): 60.0})
    for rank in range(4):
        edit_manifest(paths, rank, horovod_size=1)
    record = collect(tmp_path)
    assert rules(record) == ["horovod-size-mismatch"]
    assert not any("balanced" in text for text in record["healthy"])
    assert record["interconnect"]["transfer_ns"] is None


def test_the_gpu_of_each_rank_is_in_the_record_and_on_the_page(tmp_path):
    paths = write_run(tmp_path)
    for rank in range(4):
        gpu = {"visible": 0, "uuid": f"GPU-0000{rank}c3f", "name": "A100", "pci_bus": "x"}
        edit_manifest(paths, rank, gpus=[gpu])
    record = collect(tmp_path)
    assert record["quality"]["ranks"][3]["gpus"] == [
        {"visible": 0, "uuid": "GPU-00003c3f", "name": "A100"}
    ]
    (table,) = [t for t in build_document(record).appendix if t.title == "what was recorded"]
    assert table.heads[-2:] == ("GPU", "missing, and warnings")
    assert [row[-2] for row in table.rows] == [f"A100 (…{rank}c3f)" for rank in range(4)]
    assert {len(row) for row in table.rows} == {len(table.heads)}


def test_a_report_of_the_whole_run_says_why_its_cost_is_not_known(tmp_path):
    paths = write_run(tmp_path, steps=40)
    record_window(paths, 4, (0, 39))
    record = collect(tmp_path)
    assert (record["quality"]["collectives"], rules(record)) == ("profiler", [])
    text = " ".join(render_text(build_document(record)).split())
    assert "profiler overhead not measured: nsys recorded nearly every step; with a window" in text


def test_why_recordings_ended_early_is_told_once_for_all_ranks(tmp_path):
    paths = write_run(tmp_path, steps=60)
    record_window(paths, 4, (0, 39))
    for rank in range(4):
        why = f"stopped before the time limit; nsys report, {1000 + rank} bytes"
        edit_manifest(paths, rank, state="PARTIAL", state_reason=why)
    record = collect(tmp_path)
    (told,) = [f for f in record["findings"] if f["rule"] == "recording-incomplete"]
    assert (told["level"], told["message"]) == (
        *("info", "nsys is PARTIAL on ranks 0-3: stopped before the time limit"),
    )
    text = " ".join(render_text(build_document(record)).split())
    assert (
        "profiler nsys recorded steps 0-39 overhead not measured: 39 steps in which nsys recorded, "
        "0 before and 20 after them can be compared"
    ) in text
