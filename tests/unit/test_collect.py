"""collect as a user calls it: files in, verdict and exit code out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpcprof import pipeline
from hpcprof.cli.main import main
from hpcprof.errors import InputError
from hpcprof.pipeline.collection import job_info
from hpcprof.trace.store import TraceStore
from tests.unit.run_writer import START_NS, write_run
from tests.unit.sample_writer import EVERY_NS, read, write_samples

pytestmark = pytest.mark.unit


def rules(record):
    return [f["rule"] for f in record["findings"] if f["status"] == "ok"]


def test_a_slow_rank_is_named_from_own_spans_alone(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "backward"): 60.0})
    record = pipeline.collect(tmp_path).record
    (finding,) = [f for f in record["findings"] if f["status"] == "ok"]
    assert (finding["rule"], finding["ranks"], finding["cause"]) == (
        *("rank-arrives-late", [2], "compute"),
    )
    assert finding["impact_frac"] == pytest.approx(60 / 252, abs=0.01)
    assert json.loads(paths.findings.read_text()) == record


def test_test_reads_tell_a_slow_node_from_a_slow_rank(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "input"): 60.0})
    write_samples(paths, "node0", [read(0.5)] * 6)
    write_samples(paths, "node1", [read(48)] * 5)
    collected = pipeline.collect(tmp_path)
    (finding,) = [f for f in collected.record["findings"] if f["status"] == "ok"]
    assert (finding["ranks"], finding["cause"]) == ([2], "input")
    assert (
        "test reads of the data set take 48 ms on node node1 and 500 µs on the other node "
        "(5 and 6 reads)"
    ) in finding["evidence"]
    assert "--exclude=node1" in finding["advice"]
    reads = collected.record["reads"]
    assert reads["slow"] == ["node1"]
    assert reads["nodes"]["node1"] == {
        **{"count": 5, "median_ns": 48e6, "high_ns": 48e6, "errors": 0}
    }


def test_samples_that_cannot_be_used_are_told_and_spoil_nothing(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "input"): 60.0})
    write_samples(paths, "node0", [read(0.5)] * 6)
    paths.node_folder("node1").mkdir(parents=True)
    paths.node_samples("node1").mkdir()
    collected = pipeline.collect(tmp_path)
    assert rules(collected.record) == ["rank-arrives-late"]
    assert [w for w in collected.warnings if "samples.jsonl cannot be read" in w]
    assert collected.record["reads"] == {"nodes": {}, "slow": []}


def test_samples_in_the_folder_of_another_node_accuse_nobody(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "input"): 60.0})
    for node, ms in (("node0", 0.5), ("node1", 48)):
        write_samples(paths, node, [read(ms)] * 6)
    agent = {"kind": "agent", "schema": 1, "node": "node0", "reference": None, "transport": "none"}
    paths.node_clock("node1").write_text(json.dumps(agent) + "\n")
    collected = pipeline.collect(tmp_path)
    assert [w for w in collected.warnings if "was written by node node0" in w]
    assert collected.record["reads"] == {"nodes": {}, "slow": []}


def test_of_a_stretch_of_steps_only_its_test_reads_count(tmp_path):
    paths = write_run(tmp_path, steps=40, extra_ms={(2, "input"): 60.0})
    # a step takes 252 ms: the first 20 end about 5 s after the start
    looks = [read(48)] * 5 + [read(0.5)] * 5
    write_samples(paths, "node0", [read(0.5)] * 10, START_NS + EVERY_NS // 2)
    write_samples(paths, "node1", looks, START_NS + EVERY_NS // 2)
    ingested = pipeline.ingest(paths, TraceStore(tmp_path / "elsewhere"))
    job = job_info(paths, ingested.store, [])
    late = pipeline.analyse(ingested, job, range(20, 40)).results.reads
    assert (late.nodes["node1"].count, late.slow) == (5, ())
    assert late.nodes["node1"].median_ns == 0.5e6
    early = pipeline.analyse(ingested, job, range(1, 20)).results.reads
    assert (early.nodes["node1"].median_ns, early.slow) == (48e6, ("node1",))
    # a node whose clock nothing ties to the job's has no samples in any stretch
    clocks = {name: clock for name, clock in ingested.clocks.items() if name != "node1"}
    untied = pipeline.analyse(replace(ingested, clocks=clocks), job, range(1, 20)).results.reads
    assert list(untied.nodes) == ["node0"]


def test_collect_can_be_run_again_with_the_same_result(tmp_path):
    write_run(tmp_path)
    assert pipeline.collect(tmp_path).record == pipeline.collect(tmp_path).record


def test_one_broken_manifest_does_not_spoil_the_others(tmp_path):
    paths = write_run(tmp_path, extra_ms={(0, "input"): 60.0})
    paths.manifest(3).write_text('{"schema": 1, "rank"')
    collected = pipeline.collect(tmp_path)
    assert [w for w in collected.warnings if "manifest of rank 3 cannot be read" in w]
    assert collected.record["quality"]["missing"] == [3]
    assert rules(collected.record) == ["rank-arrives-late"]


def test_a_rank_that_was_cut_off_is_used_up_to_there(tmp_path):
    paths = write_run(tmp_path, changes={1: {"ended": None, "exit_code": None}})
    content = paths.spans(1).read_bytes()
    paths.spans(1).write_bytes(content[: len(content) * 3 // 4 + 11])
    record = pipeline.collect(tmp_path).record
    assert rules(record) == ["job-ended-early"]
    assert 25 <= record["run"]["steps_used"] <= 30
    (rank1,) = [info for info in record["quality"]["ranks"] if info["rank"] == 1]
    assert rank1["sources"]["spans"]["state"] == "PARTIAL"


def test_a_run_folder_that_cannot_be_written_is_judged_all_the_same(tmp_path):
    paths = write_run(tmp_path, extra_ms={(2, "backward"): 60.0})
    paths.store.write_text("a file in the way")
    collected = pipeline.collect(tmp_path)
    assert rules(collected.record) == ["rank-arrives-late"]
    assert "cannot be written" in collected.warnings[0]
    assert not paths.findings.exists()


def test_a_run_without_its_record_is_named_after_its_folder(tmp_path):
    paths = write_run(tmp_path / "cnn-12")
    paths.run_json.unlink()
    collected = pipeline.collect(tmp_path / "cnn-12")
    assert collected.record["run"]["name"] == "cnn-12"
    assert "the run's record is missing" in collected.warnings[0]


def test_what_is_no_run_folder_gives_a_message_and_exit_code_3(tmp_path, capsys):
    with pytest.raises(InputError, match="is no run folder"):
        pipeline.collect(tmp_path)
    assert main(["collect", str(tmp_path)]) == 3
    assert "is no run folder, or no rank of it ever started" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 3
    assert "hpcprof collect" in capsys.readouterr().err


def test_fail_on_turns_findings_into_an_exit_code(tmp_path, capsys):
    write_run(tmp_path, extra_ms={(2, "backward"): 20.0})  # 9 % of the step: warn
    assert main(["collect", str(tmp_path), "--fail-on", "critical"]) == 0
    assert main(["collect", str(tmp_path), "--fail-on", "warn"]) == 1
    assert "rank 2 (node node1) is late in compute" in capsys.readouterr().out


def test_report_prints_what_collect_printed(tmp_path, capsys):
    write_run(tmp_path)
    main(["collect", str(tmp_path)])
    collected = capsys.readouterr().out
    main(["report", str(tmp_path)])
    assert capsys.readouterr().out == collected
    assert collected.startswith("small · 2 nodes, 4 ranks · horovod · 39 steps compared\n")
