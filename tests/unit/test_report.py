"""The text report against golden files at 80 columns, and findings.json against its schema."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import hpcprof
from hpcprof.analyses import arrivals, hangs
from hpcprof.analyses.busy_steps import BusySteps
from hpcprof.analyses.hangs import HangEpisode
from hpcprof.analyses.profiler_overhead import ProfilerOverhead
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.reports.document import build_document
from hpcprof.reports.findings_record import findings_record
from hpcprof.reports.text import render_text
from tests.unit import zero_code_run
from tests.unit.results_builder import links_of_agents, network, rank_info, results

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden"
# nodes 1 and 2 of 4 send slowly
LINKS = links_of_agents(4, 12, lambda sender, *_: {1: 0.1, 2: 0.012}.get(sender, 0.64))
RUNS = {
    "healthy": {},
    "slow_node_input": {"extra_ms": {(2, "input"): 80.0, (3, "input"): 80.0}},
    "slow_rank_compute": {
        "extra_ms": {(1, "backward"): 90.0, (1, "forward"): 45.0},
        "collective_form": arrivals.MARKED,
        "has_device_activity": False,
        "payload_bytes": None,
    },
    "slow_links": {
        "ranks": 8,
        "interconnect": replace(network(0.41, LINKS, nodes=4), transfer_ns=82e6),
    },
    "capture_window": {
        "extra_ms": {(1, "input"): 40.0},
        "collective_form": arrivals.MARKED,
        "transfer_form": arrivals.PROFILER,
        "ranks": 2,
        "per_node": 1,
        "ranks_of": tuple(rank_info(r, f"node{r}", 2, window=(20, 39 + r)) for r in (0, 1)),
        "busy": BusySteps((20, 40, 41), 57),
        "overhead": ProfilerOverhead(
            "ok", "", 0.083, (0.061, 0.104), -0.031, 20, 39, 20, 18, {0: 0.083, 1: 0.083}
        ),
        "hangs": (HangEpisode((0,), (0,), 44, 611.2, True, (1,), hangs.ARRIVAL),),
    },
}


@pytest.fixture(scope="module")
def unmodified(tmp_path_factory):
    """An unmodified training with a slow rank, from its traces."""
    extra = {(2, "backward"): 20.0}
    store = zero_code_run.write_traces(
        tmp_path_factory.mktemp("run"), extra_ms=extra, in_window_frac=0.1
    )
    run = zero_code_run.results(store)
    found = find(run)
    return findings_record(run, found, list(healthy(run, found)))


def record(name):
    given = dict(RUNS[name])
    infos = given.pop("ranks_of", None)
    run = results(**given)
    if infos is not None:
        run = replace(run, ranks=infos)
    found = find(run)
    return findings_record(run, found, list(healthy(run, found)))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_text_report_is_the_golden_one(name):
    """HPCPROF_REGENERATE=1 writes the golden files anew; look at them before you commit."""
    _compare(name, record(name))


def test_text_report_of_an_unmodified_training_is_the_golden_one(unmodified):
    _compare("unmodified", unmodified)


def _compare(name, of_run):
    text = render_text(build_document(of_run))
    golden = GOLDEN / f"report_{name}.txt"
    if os.environ.get("HPCPROF_REGENERATE"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


@pytest.mark.parametrize("name", sorted(RUNS))
def test_findings_json_obeys_its_schema(name):
    schema = Path(hpcprof.__file__).parent / "reports" / "findings.schema.json"
    value = json.loads(json.dumps(record(name), allow_nan=False))
    jsonschema.validate(value, json.loads(schema.read_text(encoding="utf-8")))


def test_a_report_from_the_file_is_the_same_report():
    again = json.loads(json.dumps(record("slow_node_input")))
    assert build_document(again) == build_document(record("slow_node_input"))
