"""A stretch of steps of a run, judged as if it were a run of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.findings import find
from hpcprof.pipeline import Ingested, analyse, ingest
from hpcprof.pipeline.collection import job_info
from hpcprof.reports.findings_record import findings_record
from hpcprof.trace.store import TraceStore

from .plan import Trial


@dataclass(frozen=True)
class Window:
    """Steps ``first`` to ``last`` had the fault of ``trial``."""

    trial: Trial
    first: int
    last: int


def read_run(run_dir: Path, store: Path) -> Ingested:
    """The run as collect reads it, with its store elsewhere."""
    return ingest(ArtifactPaths(run_dir), TraceStore(store))


def judge(run_dir: Path, ingested: Ingested, window: Window) -> dict[str, Any]:
    """The findings record of the window alone."""
    warnings: list[str] = []
    job = job_info(ArtifactPaths(run_dir), ingested.store, warnings)
    results = analyse(ingested, job, steps=range(window.first, window.last + 1)).results
    return findings_record(results, find(results), [])
