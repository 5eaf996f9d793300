"""A long run judged by some of its steps, end to end: same verdict, and it says how many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof import pipeline
from hpcprof.analyses import arrivals, shared_steps
from hpcprof.analyses import timeline as timelines
from hpcprof.pipeline.analysis import figures
from hpcprof.pipeline.collection import job_info
from hpcprof.pipeline.rank_parts import rank_parts, timeline_spans
from hpcprof.trace.store import TraceStore
from tests.unit.run_writer import write_run

pytestmark = pytest.mark.unit


def analysed(paths, ingested, steps=None):
    return pipeline.analyse(ingested, job_info(paths, ingested.store, []), steps=steps)


@pytest.fixture
def paths(tmp_path):
    return write_run(tmp_path, steps=40, extra_ms={(2, "backward"): 60.0})


def test_more_steps_than_the_bound_leave_the_verdict_and_the_clocks(paths, monkeypatch):
    whole = pipeline.ingest(paths, TraceStore(paths.store))
    everything = analysed(paths, whole).results
    monkeypatch.setattr(shared_steps, "MOST_STEPS", 10)
    ingested = pipeline.ingest(paths, TraceStore(paths.store))
    some = analysed(paths, ingested).results
    assert (everything.interconnect.steps, some.interconnect.steps) == (40, 10)
    assert (some.interconnect.collectives, some.interconnect.dropped) == (10, 0)
    assert some.stragglers == everything.stragglers
    assert some.interconnect.transfer_ns == everything.interconnect.transfer_ns == 20e6
    samples = [clocks["node1"].samples for clocks in (whole.clocks, ingested.clocks)]
    assert samples == [40, 10]
    for node, clock in ingested.clocks.items():
        assert clock.violations == 0
        assert abs(clock.offset_ns - whole.clocks[node].offset_ns) <= clock.bound_ns


def test_of_a_stretch_of_steps_the_bound_takes_some_of_that_stretch(paths, monkeypatch):
    monkeypatch.setattr(shared_steps, "MOST_STEPS", 5)
    ingested = pipeline.ingest(paths, TraceStore(paths.store))
    store, counts = ingested.store, ingested.step_counts
    shared = shared_steps.shared_forms((rank, counts[rank]) for rank in store.ranks())
    parts = rank_parts(store, shared, range(10, 30))
    taken = sorted(set(parts.collectives.rows["step"]))
    assert (taken[0], taken[-1]) == (10, 29)
    assert [(step - 10) // 4 for step in taken] == [0, 1, 2, 3, 4]  # one of every four
    assert parts.collectives.ranks == (0, 1, 2, 3)
    assert [frame.index.tolist() for frame in parts.frames.values()] == [list(range(10, 30))] * 4
    assert analysed(paths, ingested, range(10, 30)).results.interconnect.steps == 5


def test_a_rank_without_collectives_has_a_frame_and_takes_nothing_from_the_others(paths):
    ingested = pipeline.ingest(paths, TraceStore(paths.store))
    trace = ingested.store.read(3)
    ingested.store.write(replace(trace, spans=trace.spans.head(0)))
    counts = {**ingested.step_counts, 3: {}}
    parts = rank_parts(ingested.store, shared_steps.shared_forms(counts.items()))
    assert (len(parts.frames), len(parts.frames[3])) == (4, 0)
    assert (parts.collectives.ranks, len(parts.collectives)) == ((0, 1, 2), 40)
    none = shared_steps.SharedSteps(arrivals.NONE)
    nothing = rank_parts(ingested.store, shared_steps.SharedForms(none, none))
    assert (nothing.frames, len(nothing.collectives), nothing.collectives.dropped) == ({}, 0, 0)


def test_the_picture_is_the_same_from_its_own_spans_as_from_all(paths):
    ingested = pipeline.ingest(paths, TraceStore(paths.store))
    analysis = analysed(paths, ingested)
    steps = timelines.typical_steps(analysis.matrix)
    node_of = {rank: f"node{rank // 2}" for rank in range(4)}
    late = analysis.results.stragglers.lateness_ns
    spans = timeline_spans(ingested.store, (0, 1, 2, 3), steps)
    everything = {
        rank: ingested.store.read_spans(rank, timelines.COLUMNS_READ, timelines.KINDS_READ)
        for rank in node_of
    }
    drawn = timelines.timeline(everything, steps, node_of, late)
    assert timelines.timeline(spans, steps, node_of, late) == drawn
    assert len(drawn.bars) == 4 * 4 * len(steps)
    assert sum(map(len, spans.values())) == len(drawn.bars) + drawn.dropped
    record = figures(ingested, analysis)["timeline"]
    assert record["steps"] == list(steps)


def test_ranks_that_are_not_drawn_are_counted(paths):
    ingested = pipeline.ingest(paths, TraceStore(paths.store))
    node_of = {rank: f"node{rank // 2}" for rank in range(4)}
    lanes = timelines.lanes(node_of, node_of, {2: 60e6, 0: 5.0}, most=2)
    spans = timeline_spans(ingested.store, lanes, (3,))
    drawn = timelines.timeline(spans, (3,), node_of, {2: 60e6})
    assert (drawn.ranks, drawn.nodes, drawn.ranks_left_out) == ((0, 2), ("node0", "node1"), 2)
