"""What the node agents did not measure is said in the verdict, in the report and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import hpcprof
from hpcprof import pipeline
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.reports.agent_notes import note_sentences
from hpcprof.reports.document import build_document
from hpcprof.reports.text import render_text
from tests.unit.agent_writer import lines, tell_of_job, write_agent, write_log
from tests.unit.run_writer import write_run

pytestmark = pytest.mark.unit

REFUSED = "srun: error: Unable to create step for job 77: Memory required by task is not available"


def absent(collected):
    return [f for f in collected.record["findings"] if f["rule"] == "agent-left-no-record"]


def notes(collected):
    return {note["text"]: note["nodes"] for note in collected.record["quality"]["agent_notes"]}


def report(collected):
    return " ".join(render_text(build_document(collected.record)).split())


def advices(collected):
    return [f["advice"] for f in collected.record["findings"] if "agent" in f["advice"]]


def job(folder: Path, steps: int = 40, **launch) -> ArtifactPaths:
    """A job on node0 and node1; a step takes 192 ms."""
    paths = write_run(folder, steps=steps)
    tell_of_job(paths, **launch)
    return paths


def test_agents_that_never_started_are_told_with_what_srun_said(tmp_path):
    paths = job(tmp_path)
    write_log(paths, f"srun: Job 77 step creation temporarily disabled\n\x1b[1m{REFUSED}\r\n\n")
    collected = pipeline.collect(tmp_path)
    (finding,) = absent(collected)
    assert (finding["status"], finding["nodes"]) == ("not_collected", ["node0", "node1"])
    assert finding["message"] == (
        "the node agent left no record on node0, node1; their clocks were not compared by agents, "
        "and links, counters and test reads of the data set were not measured"
    )
    assert finding["evidence"] == [f"nodes/agent.log says: [1m{REFUSED}"]
    assert finding["advice"].startswith("see nodes/agent.log in the run folder")
    assert "not measured · the node agent left no record on node0, node1" in report(collected)
    assert REFUSED in paths.report_html.read_text()


def test_the_line_about_the_node_that_is_missing_is_quoted_and_cut(tmp_path):
    paths = job(tmp_path)
    write_agent(paths, "node0", 8)
    about = "srun: error: node1: task 1: Killed " + "x" * 300
    write_log(paths, f"{about}\nnode10 is fine\nhpcprof agent: node0: something else\n")
    (finding,) = absent(pipeline.collect(tmp_path))
    assert finding["nodes"] == ["node1"]
    assert "on node1; its clock was not compared by agents, and links" in finding["message"]
    (quoted,) = finding["evidence"]
    assert quoted == f"nodes/agent.log says: {about[:199]}…"


def test_an_agent_killed_before_its_first_record_left_none(tmp_path):
    paths = job(tmp_path)
    for node in ("node0", "node1"):
        paths.node_folder(node).mkdir(parents=True)
        for path in (paths.node_clock(node), paths.node_links(node), paths.node_samples(node)):
            path.touch()
    (finding,) = absent(pipeline.collect(tmp_path))
    assert finding["nodes"] == ["node0", "node1"]
    assert finding["evidence"] == ["nodes/agent.log says nothing"]


def test_one_node_misses_its_counters_only(tmp_path):
    tell_of_job(write_run(tmp_path, ranks=2))
    (finding,) = absent(pipeline.collect(tmp_path))
    assert finding["message"] == (
        "the node agent left no record on node0; its counters and test reads of the data set "
        "were not measured"
    )


def test_agents_that_were_there_all_the_time_leave_nothing_to_say(tmp_path):
    paths = job(tmp_path)
    for node in ("node0", "node1"):
        write_agent(paths, node, 8)
    collected = pipeline.collect(tmp_path)
    assert (absent(collected), notes(collected)) == ([], {})
    assert "agent of" not in report(collected)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({"agent": "none"}, "add profile: {agent: auto} to the job spec"),
        ({"agent": "auto"}, "see nodes/agent.log in the run folder"),
        (None, None),
    ],
    ids=["not-wanted", "wanted", "local-launch"],
)
def test_advice_about_the_agent_follows_how_the_run_was_started(tmp_path, launch, expected):
    paths = write_run(tmp_path)
    for rank in (2, 3):  # no collective in common, so that only wall clocks tie the nodes
        paths.spans(rank).unlink()
    if launch is not None:
        tell_of_job(paths, **launch)
    collected = pipeline.collect(tmp_path)
    unknown = [
        f for f in collected.record["findings"] if f["rule"] == "order-between-nodes-unknown"
    ]
    assert len(unknown) == 1
    said = advices(collected)
    assert all(advice.startswith(expected) for advice in said) if expected else said == []
    assert bool(absent(collected)) is (launch == {"agent": "auto"})
    assert (expected is None) or said


def test_a_damaged_record_of_the_run_does_not_hide_that_agents_were_wanted(tmp_path):
    paths = job(tmp_path)
    write_log(paths, REFUSED)
    paths.run_json.unlink()
    assert len(absent(pipeline.collect(tmp_path))) == 1


def test_notes_of_agents_are_in_the_record_the_report_and_the_page(tmp_path):
    paths = job(tmp_path)
    text = "the connection by MPI broke off; from here on there are samples only"
    write_agent(paths, "node0", 8, notes=(text,))
    write_agent(paths, "node1", 8, notes=(text, "late\x1b[31m\nhere\u202e " + "y" * 300))
    collected = pipeline.collect(tmp_path)
    assert notes(collected) == {
        text: ["node0", "node1"],
        "late [31m here " + "y" * (199 - 15) + "…": ["node1"],
    }
    said = f"agents of node0, node1: {text}"
    assert report(collected).index("not measured ·") < report(collected).index(f"· {said}")
    assert said in paths.report_html.read_text()
    assert said in collected.warnings
    schema = Path(hpcprof.__file__).parent / "reports" / "findings.schema.json"
    jsonschema.validate(collected.record, json.loads(schema.read_text()))


def test_many_notes_and_many_nodes_are_counted():
    every = [([f"n{i}" for i in range(12)], "silent")] + [(["n1"], str(i)) for i in range(20)]
    sentences = note_sentences(every)
    assert len(sentences) == 9
    assert sentences[0] == "agents of 12 nodes (n0, n1, n2, …): silent"
    assert sentences[7] == "agent of n1: 6"
    assert sentences[8].startswith("and 13 more ")
    assert note_sentences(every[:8])[-1] == "agent of n1: 6"


def test_a_record_from_before_there_were_notes_still_gives_a_report(tmp_path):
    write_run(tmp_path)
    collected = pipeline.collect(tmp_path)
    del collected.record["quality"]["agent_notes"]
    assert "agent of" not in report(collected)


def test_missing_and_damaged_links_are_told(tmp_path):
    paths = job(tmp_path)
    for node in ("node0", "node1"):
        write_agent(paths, node, 8)
    paths.node_links("node0").unlink()
    with open(paths.node_links("node1"), "a") as stream:
        stream.write("{damaged\n")
    found = notes(pipeline.collect(tmp_path))
    assert found == {
        "links.jsonl is missing (no node agent ran there, or it could not write)": ["node0"],
        "links.jsonl: 1 lines are damaged and were left out": ["node1"],
    }


def test_samples_of_nobody_are_told(tmp_path):
    paths = job(tmp_path)
    for node in ("node0", "node1"):
        write_agent(paths, node, 8)
    paths.node_clock("node1").write_text("")
    collected = pipeline.collect(tmp_path)
    assert notes(collected) == {
        "clock.jsonl does not say who wrote it; clock and links are not known": ["node1"]
    }
    assert absent(collected) == []


@pytest.mark.parametrize(("with_end", "how"), [(False, ", without an end record"), (True, "")])
def test_an_agent_that_died_early_is_told(tmp_path, with_end, how):
    paths = job(tmp_path, 400, agent_interval_s=5)
    write_agent(paths, "node0", 77)
    write_agent(paths, "node1", 25, with_end=with_end)
    found = notes(pipeline.collect(tmp_path))
    assert found == {
        f"ended 51.8 s before the training{how}; from there on the clock is extrapolated, and "
        "links, counters and test reads were not measured": ["node1"]
    }


def test_without_the_agent_of_the_reference_the_other_clocks_are_extrapolated(tmp_path):
    paths = job(tmp_path, 400, agent_interval_s=5)
    for node in ("node0", "node1"):
        write_agent(paths, node, 25)
    assert sorted(text.partition("; ")[2][:46] for text in notes(pipeline.collect(tmp_path))) == [
        "from there on the clock is extrapolated, and l",
        "from there on the other clocks are extrapolate",
    ]


def test_an_agent_without_readings_in_the_end_but_samples_is_told(tmp_path):
    paths = job(tmp_path, 400, agent_interval_s=5)
    write_agent(paths, "node0", 77)
    write_agent(paths, "node1", 25)
    with open(paths.node_samples("node1"), "a") as stream:
        last = json.loads(paths.node_samples("node1").read_text())
        stream.write(lines([{**last, "monotonic_ns": last["monotonic_ns"] + 50 * 10**9}]))
    (text,) = notes(pipeline.collect(tmp_path))
    assert text == (
        "read the clocks for the last time 51.8 s before the training ended; they are "
        "extrapolated from there"
    )


def test_an_agent_killed_together_with_the_job_ended_in_time(tmp_path):
    # its last reading is up to an interval old, and the one before the end may have failed
    paths = job(tmp_path, 400, agent_interval_s=30)
    write_agent(paths, "node0", 77, with_end=False)
    write_agent(paths, "node1", 20, with_end=False)
    assert notes(pipeline.collect(tmp_path)) == {}
