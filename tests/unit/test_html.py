"""The page: what its figures show, that it speaks the Document's words, that it needs nothing."""

from __future__ import annotations

import copy
import html
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcprof.reports
from hpcprof import pipeline
from hpcprof.analyses import arrivals
from hpcprof.analyses.lateness_map import MAX_BINS, lateness_map
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.timeline import (
    COLUMNS_READ,
    KINDS_READ,
    MAX_RANKS,
    timeline,
    typical_steps,
)
from hpcprof.cli.main import main
from hpcprof.errors import InputError
from hpcprof.reports.document import build_document
from hpcprof.reports.figures import figures_record, read_figures
from hpcprof.reports.html import WITHOUT_BOKEH, WITHOUT_RECORD, render_html
from hpcprof.trace import columns as c
from hpcprof.trace.frame import concat_spans, spans_frame
from hpcprof.trace.store import TraceStore
from tests.unit.page_builder import (
    SLOW_RANK,
    page_records,
    phase_spans,
    write_collected,
)
from tests.unit.run_writer import write_run
from tests.unit.synthetic_run import MS, frames

pytestmark = pytest.mark.unit

NODES = {rank: f"node{rank // 2}" for rank in range(4)}


@pytest.fixture(scope="module")
def made():
    """The records of a healthy run and of one with a slow rank, made once."""
    return {"healthy": page_records(), "slow": page_records(extra_ms=SLOW_RANK)}


@pytest.fixture
def healthy(made):
    """findings.json and figures.json of a healthy run; tests may change them."""
    return copy.deepcopy(made["healthy"])


@pytest.fixture
def slow(made):
    """The same of a run with a slow rank."""
    return copy.deepcopy(made["slow"])


def page(records):
    """The page of (findings.json, figures.json)."""
    record, figures = records
    return render_html(build_document(record), record, figures)


def words(page):
    """The page's text as a reader sees it, its scripts left out."""
    without = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


# the timeline


def test_the_step_shown_is_the_one_of_median_delay_with_its_neighbours():
    matrix = across_ranks(frames(4), 4)
    arrival = np.full((7, 4), 200.0 * MS)
    arrival[:, 3] += np.array([90, 10, 20, 70, 30, 100, 50]) * MS  # median 50: the last step
    steps = (4, 5, 6, 7, 9, 10, 11)
    matrix = replace(matrix, steps=steps, values={**matrix.values, "arrival_ns": arrival})
    assert typical_steps(matrix) == (10, 11)
    arrival[:, 3] = (200 + np.array([90, 10, 50, 70, 30, 100, 20])) * MS
    assert typical_steps(matrix) == (5, 6, 7)


def test_without_comparable_steps_there_is_no_timeline():
    assert typical_steps(across_ranks({}, 4)) == ()
    empty = timeline({}, (), {})
    assert (empty.ranks, empty.bars, empty.dropped) == ((), (), 0)


def test_bars_are_the_phases_of_the_chosen_steps_on_one_clock():
    spans = {rank: phase_spans(frame) for rank, frame in frames(4, steps=6, noise=0).items()}
    drawn = timeline(spans, (2, 3), NODES)
    assert len(drawn.bars) == 4 * 2 * 4
    assert drawn.ranks == (0, 1, 2, 3)
    # a step is 180 ms of arrival and 20 ms of transfer; step 2 begins after two of them
    assert drawn.origin_ns == 2 * 200 * MS
    mine = [bar for bar in drawn.bars if bar.rank == 1 and bar.step == 3]
    assert [(bar.phase, bar.start_ns / MS, bar.duration_ns / MS) for bar in mine] == [
        *((c.INPUT, 200, 2), (c.FORWARD, 202, 60)),
        *((c.BACKWARD, 262, 110), (c.ALLREDUCE, 380, 20)),
    ]
    assert [bar.bytes for bar in mine] == [None, None, None, 1_200_000]


def test_collectives_of_the_profiler_are_drawn_as_allreduce_with_their_name():
    collective = spans_frame(
        {
            **{c.START_NS: [150 * MS], c.END_NS: [160 * MS], c.STEP: [2], c.BYTES: [64]},
            **{c.KIND: c.COLLECTIVE, c.OP: "broadcast", c.NAME: "HorovodBroadcast.w"},
            **{c.SOURCE: "nsys"},
        }
    )
    phases = phase_spans(frames(1, steps=4)[0])
    drawn = timeline({0: concat_spans([phases, collective])}, (2,), NODES)
    (bar,) = [bar for bar in drawn.bars if bar.is_collective]
    assert (bar.phase, bar.name, bar.bytes) == ("allreduce", "HorovodBroadcast.w", 64)


def test_too_many_spans_lose_the_shortest_and_say_so(monkeypatch):
    monkeypatch.setattr("hpcprof.analyses.timeline.MAX_SPANS", 5)
    spans = {rank: phase_spans(frame) for rank, frame in frames(2, steps=4).items()}
    drawn = timeline(spans, (2,), NODES)
    assert drawn.dropped == 3
    assert {bar.phase for bar in drawn.bars} == {c.FORWARD, c.BACKWARD, c.ALLREDUCE}


def test_of_too_many_ranks_the_latest_are_shown_by_node():
    ranks = MAX_RANKS + 6
    node_of = {rank: f"n{rank % 2}" for rank in range(ranks)}
    empty = phase_spans(frames(1, steps=3)[0])
    late = {rank: float(rank) for rank in range(ranks)}
    drawn = timeline(dict.fromkeys(range(ranks), empty), (1,), node_of, late)
    assert sorted(drawn.ranks) == list(range(6, ranks))
    assert drawn.ranks[:3] == (6, 8, 10)
    assert drawn.nodes.index("n1") == MAX_RANKS // 2
    assert drawn.ranks_left_out == 6


# the map of lateness


def test_lateness_is_against_the_baseline_ranks():
    matrix = across_ranks(frames(4, extra_ms={(2, "input"): 80.0}, noise=0), 4)
    drawn = lateness_map(matrix, (0, 1, 3), NODES)
    cells = np.array(drawn.lateness_ns) / MS
    assert cells.shape == (4, 60)
    assert np.allclose(cells[2], 80, atol=0.01)
    assert np.allclose(cells[[0, 1, 3]], 0, atol=0.01)
    assert drawn.limit_ns == pytest.approx(80 * MS, rel=0.01)


def test_a_healthy_run_is_not_painted_in_full_colours():
    matrix = across_ranks(frames(8), 8)
    drawn = lateness_map(matrix, (), dict.fromkeys(range(8), "n"))
    assert drawn.limit_ns == pytest.approx(0.1 * matrix.median_step_ns)
    assert np.abs(np.array(drawn.lateness_ns)).max() < drawn.limit_ns / 2


def test_many_steps_are_binned_by_their_median_and_missing_ones_stay_empty():
    matrix = across_ranks(frames(2, steps=4, noise=0), 2)
    steps = tuple(step for step in range(3 * MAX_BINS) if not 30 <= step < 36)
    arrival = np.zeros((len(steps), 2))
    arrival[:, 1] = 10 * MS
    arrival[0, 1] = 9000 * MS  # one odd step of three does not colour its bin
    values = {"arrival_ns": arrival, "sync_ns": np.full_like(arrival, 200.0 * MS)}
    drawn = lateness_map(replace(matrix, steps=steps, values=values), (0,), NODES)
    assert drawn.steps_per_bin == 3
    row = np.array(drawn.lateness_ns[1]) / MS
    assert len(row) == MAX_BINS
    assert row[0] == 10
    assert np.flatnonzero(np.isnan(row)).tolist() == [10, 11]


@settings(deadline=None)
@given(count=st.integers(1, 2000), start=st.integers(0, 10**6))
def test_bins_cover_all_steps_and_are_never_too_many(count, start):
    steps = tuple(range(start, start + count))
    arrival = np.arange(count, dtype=np.float64)[:, None] * np.array([0.0, 1.0])
    values = {"arrival_ns": arrival, "sync_ns": np.ones_like(arrival)}
    matrix = replace(across_ranks({}, 2), ranks=(0, 1), steps=steps, values=values)
    drawn = lateness_map(matrix, (0,), NODES)
    bins = len(drawn.lateness_ns[1])
    assert bins <= MAX_BINS
    assert (bins - 1) * drawn.steps_per_bin < count <= bins * drawn.steps_per_bin
    assert np.all(np.diff(drawn.lateness_ns[1]) > 0)


def test_what_collect_stores_can_be_drawn(tmp_path):
    paths = write_run(tmp_path, steps=12, extra_ms={(2, "backward"): 60.0})
    pipeline.collect(tmp_path)
    store = TraceStore(paths.store)
    spans = {r: store.read_spans(r, COLUMNS_READ, KINDS_READ) for r in store.ranks()}
    steps = {r: arrivals.per_rank(table, arrivals.MARKED) for r, table in spans.items()}
    matrix = across_ranks(steps, 4)
    drawn = timeline(spans, typical_steps(matrix), NODES)
    assert len(drawn.bars) == 4 * 4 * len(drawn.steps)
    assert {bar.name for bar in drawn.bars} == {c.INPUT, c.FORWARD, c.BACKWARD, c.ALLREDUCE}
    assert {bar.bytes for bar in drawn.bars if bar.phase == c.ALLREDUCE} == {4096}
    late = lateness_map(matrix, (0, 1, 3), NODES)
    assert np.allclose(np.array(late.lateness_ns[2]) / MS, 60, atol=0.1)


# the record of the figures


def test_figures_come_back_from_json_as_they_were():
    matrix = across_ranks(frames(4), 4)
    spans = {rank: phase_spans(frame) for rank, frame in frames(4).items()}
    drawn = timeline(spans, typical_steps(matrix), NODES)
    late = lateness_map(matrix, (0, 1), NODES)
    gap = replace(late, lateness_ns=((float("nan"), 1.4), *late.lateness_ns[1:]))
    record = json.loads(json.dumps(figures_record(drawn, gap), allow_nan=False))
    again = read_figures(record)
    assert again.timeline == drawn
    assert np.isnan(again.lateness.lateness_ns[0][0])
    assert again.lateness.lateness_ns[0][1] == 1
    assert again.lateness.ranks == late.ranks


def test_figures_of_another_version_are_refused():
    with pytest.raises(InputError, match="run hpcprof collect again"):
        read_figures({"schema": 99})


# the page


def test_the_page_says_what_the_document_says(slow):
    document = build_document(slow[0])
    seen = words(page(slow))
    (entry,) = document.entries
    said = [document.headline, entry.message, *(text for _, text in entry.lines)]
    said += [text for _, text in (*document.facts, *document.remarks)]
    said += [cell for table in document.tables for row in table.rows for cell in row]
    assert [text for text in said if " ".join(text.split()) not in seen] == []
    assert "rank 5 (node node1) is late in input" in entry.message


def test_a_healthy_run_says_what_is_healthy_and_what_was_not_measured(healthy):
    record, _ = healthy
    record["findings"] = []
    seen = words(page(healthy))
    assert "Nothing slow was found in what was measured." in seen
    assert "Healthy ranks balanced: none of 8 ranks is late for good" in seen
    assert "Not measured nothing is known to be missing" in seen
    unmeasured = {"rule": "not-collected", "level": "info", "status": "not_collected"}
    said = {"message": "GPU clocks", "evidence": [], "advice": "", "impact_frac": None, "ci": None}
    record["findings"] = [{**unmeasured, **said}]
    seen = words(page(healthy))
    assert "Nothing slow was found in what was measured." in seen
    assert "Not measured GPU clocks" in seen


def test_too_little_to_judge_is_not_called_healthy(healthy):
    healthy[0]["healthy"] = []
    seen = words(page(healthy))
    assert "nothing could be found healthy either" in seen
    assert "Healthy nothing could be found healthy" in seen


def test_the_page_says_that_order_between_nodes_cannot_be_seen(healthy):
    for clock in healthy[0]["clocks"].values():
        clock.update(status="utc-only", bound_ns=20_000_000)
    assert (
        "Order between nodes cannot be read off this picture (± 40 ms): their clocks were compared "
        "by the wall clock only."
    ) in words(page(healthy))


def test_fitted_clocks_give_the_bound_between_two_nodes(healthy):
    record, _ = healthy
    fitted = {"status": "estimated", "method": "ping-pong", "drift_ppb": 1500, "residual_ns": 900}
    record["clocks"] = {
        "node0": {**fitted, "offset_ns": 10**18, "bound_ns": 20_000},
        "node1": {**fitted, "offset_ns": 10**18 + 2_000_000_500, "bound_ns": 30_000},
    }
    document = build_document(record)
    assert "agree within ± 50 µs" in document.order_note
    (clocks, _) = document.appendix
    assert clocks.rows[1] == (
        *("node1", "+2.000001", "+1.500", "900 ns", "± 30 µs", "ping-pong", "estimated"),
    )
    record["clocks"]["node1"]["bound_ns"] = 15_000_000
    assert "cannot be read off this picture (± 15 ms)" in build_document(record).order_note
    record["clocks"]["node1"]["bound_ns"] = None
    assert "nothing ties the clock of node1" in build_document(record).order_note


def test_gaps_are_said_and_ranks_alike_share_a_row():
    record, _ = page_records(ranks=4, per_node=2)
    (_, whole) = build_document(record).appendix
    assert whole.rows == (("0-3", "node0, node1", "OK", "OK", "0–60", "0", "none"),)
    assert whole.note == "All 4 ranks of the job left a recording."
    record["quality"]["ranks"] = record["quality"]["ranks"][:3]
    record["quality"]["ranks"][1]["warnings"] = ["the disk was full"]
    record["quality"]["missing"] = [3]
    record["phases"]["ranks"] = [0, 1, 2]
    (_, quality) = build_document(record).appendix
    assert quality.heads[:5] == ("ranks", "node", "spans", "nsys", "steps")
    assert quality.rows == (
        ("0, 2", "node0, node1", "OK", "OK", "0–60", "0", "none"),
        ("1", "node0", "OK", "OK", "0–60", "0", "the disk was full"),
        ("3", "", "nothing", "nothing", "", "", "left no readable recording"),
    )
    assert "Gap: rank 3 of 4 left no readable recording" in quality.note


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", "</title><script>", 'a"><img src=x onerror=alert(1)>']
)
def test_names_are_text_and_never_markup(healthy, evil):
    plain = page(healthy)
    record, figures = healthy
    record["run"]["name"] = evil
    record["healthy"].append(evil)
    record["quality"]["ranks"][0]["warnings"] = [evil]
    figures["timeline"]["bars"]["name"][0] = evil
    figures["timeline"]["nodes"] = [evil] * 8
    text = page(healthy)
    assert evil not in text
    assert html.escape(evil).replace("&quot;", "&#34;") in text
    assert text.count("<script") == plain.count("<script")
    assert text.count("<img") == plain.count("<img")


def test_nothing_on_the_page_points_outside(slow):
    text = page(slow)
    library = max(re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL), key=len)
    ours = text.replace(library, "")
    assert len(library) > 500_000  # Bokeh's own code names places it would go to when asked
    assert re.findall(r"https?://|\bsrc\s*=|\bhref\s*=|@import|url\(", ours) == []
    # and the browser is told to ask for nothing, whatever a script wants
    assert "content=\"default-src 'none';" in ours
    assert "connect-src" not in ours


def test_both_figures_are_in_the_page_with_their_numbers(slow):
    found = re.findall(r"embed_item\((\{.*?\})\);</script>", page(slow))
    items = [json.loads(text) for text in found]
    assert [item["target_id"] for item in items] == ["timeline", "lateness"]
    drawn = json.dumps(items[0])
    assert "rank 5 on node1" in drawn
    assert '"1.2 MB"' in drawn
    assert "\\u25b6 5" in drawn  # the rank that the finding names
    assert '"high": 8' in json.dumps(items[1])  # the scale ends near the 80 ms of lateness


def test_a_page_without_recorded_figures_says_so(healthy):
    text = page((healthy[0], None))
    assert WITHOUT_RECORD in words(text)
    assert "<script" not in text


def test_a_page_without_bokeh_says_how_to_get_it(healthy, monkeypatch):
    monkeypatch.delitem(sys.modules, "hpcprof.reports.plots", raising=False)
    monkeypatch.delattr(hpcprof.reports, "plots", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "bokeh"]:
        monkeypatch.setitem(sys.modules, name, None)
    text = page(healthy)
    assert WITHOUT_BOKEH in words(text)
    assert "<script" not in text


# the verb


def test_report_writes_the_page_and_prints_where(slow, tmp_path, capsys):
    paths = write_collected(tmp_path / "run", slow)
    assert main(["report", str(paths.root), "--format", "html"]) == 0
    assert capsys.readouterr().out == f"{paths.report_html}\n"
    written = paths.report_html.read_text(encoding="utf-8")
    assert words(written) == words(page(slow))
    assert "embed_item" in written
    elsewhere = tmp_path / "page.html"
    paths.figures.write_text('{"schema":')
    assert main(["report", str(paths.root), "--format", "html", "-o", str(elsewhere)]) == 0
    assert "cannot be read" in capsys.readouterr().err
    paths.figures.unlink()
    assert main(["report", str(paths.root), "--format", "html", "-o", str(elsewhere)]) == 0
    assert WITHOUT_RECORD in words(elsewhere.read_text(encoding="utf-8"))


def test_a_page_that_cannot_be_written_is_told(healthy, tmp_path, capsys):
    paths = write_collected(tmp_path / "run", healthy)
    target = tmp_path / "none" / "page.html"
    assert main(["report", str(paths.root), "--format", "html", "-o", str(target)]) == 3
    assert f"the page cannot be written: {target} (No such file" in capsys.readouterr().err
    assert main(["report", str(paths.root), "-o", str(target)]) == 2
    assert "add --format html" in capsys.readouterr().err
