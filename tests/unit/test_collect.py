"""collect as a user calls it: files in, verdict and exit code out."""

from __future__ import annotations

import json

import pytest

from hpcprof import pipeline
from hpcprof.cli.main import main
from hpcprof.errors import InputError
from tests.unit.run_writer import write_run

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
