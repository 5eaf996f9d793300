"""The page of a synthetic run: its findings record, its figures, and a folder that holds both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hpcprof.analyses.causes import cause
from hpcprof.analyses.lateness_map import lateness_map
from hpcprof.analyses.phase_times import phase_times
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.stragglers import stragglers
from hpcprof.analyses.timeline import timeline, typical_steps
from hpcprof.artifacts.atomic import write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.reports.document import build_document
from hpcprof.reports.figures import figures_record
from hpcprof.reports.findings_record import findings_record
from hpcprof.reports.html import render_html
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame
from tests.unit.results_builder import results
from tests.unit.synthetic_run import frames

SLOW_RANK = {(5, "input"): 80.0}


def phase_spans(frame: pd.DataFrame) -> pd.DataFrame:
    """Spans of the phases that an arrival frame was made of, one after the other."""
    rows: list[tuple[str, int, int, int]] = []
    for step, row in frame.iterrows():
        ready = int(row["end_ns"] - row["sync_ns"])
        now = ready - int(row["arrival_ns"])
        for phase in (c.INPUT, c.FORWARD, c.BACKWARD):
            rows.append((phase, step, now, now + int(row[f"{phase}_ns"])))
            now += int(row[f"{phase}_ns"])
        rows.append((c.ALLREDUCE, step, ready, int(row["end_ns"])))
    return spans_frame(
        {
            c.START_NS: [row[2] for row in rows],
            c.END_NS: [row[3] for row in rows],
            c.KIND: c.PHASE_KIND,
            c.NAME: [row[0] for row in rows],
            c.PHASE: [row[0] for row in rows],
            c.STEP: [row[1] for row in rows],
            c.BYTES: [1_200_000 if row[0] == c.ALLREDUCE else None for row in rows],
            c.SOURCE: "hpcprof",
        }
    )


def page_records(
    ranks: int = 8,
    per_node: int = 4,
    extra_ms: Mapping[tuple[int, str], float] | None = None,
    name: str = "image-cnn",
    noise: float = 0.01,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """findings.json and figures.json of a run, as they would be read from files."""
    arrivals = frames(ranks, extra_ms=extra_ms, noise=noise)
    matrix = across_ranks(arrivals, ranks)
    node_of = {rank: f"node{rank // per_node}" for rank in range(ranks)}
    verdict = stragglers(matrix, node_of)
    run = results(
        *(ranks, per_node),
        stragglers=verdict,
        causes=tuple(cause(matrix, found, verdict.baseline_ranks) for found in verdict.found),
        phase_times=phase_times(matrix),
    )
    run = replace(run, job=replace(run.job, name=name))
    spans_of = {rank: phase_spans(frame) for rank, frame in arrivals.items()}
    figures = figures_record(
        timeline(spans_of, typical_steps(matrix), node_of, run.stragglers.lateness_ns),
        lateness_map(matrix, run.stragglers.baseline_ranks, node_of),
    )
    found = find(run)
    record = findings_record(run, found, list(healthy(run, found)))
    return _as_read(record), _as_read(figures)


def page_text(**run: Any) -> str:
    """The page of ``page_records(**run)``."""
    record, figures = page_records(**run)
    return render_html(build_document(record), record, figures)


def write_collected(folder: Path, records: tuple[dict[str, Any], dict[str, Any]]) -> ArtifactPaths:
    """A run folder after collect, as far as ``hpcprof report`` reads it."""
    paths = ArtifactPaths(folder)
    paths.store.mkdir(parents=True)
    write_json(paths.findings, records[0])
    write_json(paths.figures, records[1])
    return paths


def _as_read(record: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(json.dumps(record, allow_nan=False))
    assert isinstance(value, dict)
    return value
