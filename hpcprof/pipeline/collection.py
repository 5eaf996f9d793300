"""What ``hpcprof collect`` does: judge a run folder and write the verdict into it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcprof import readers
from hpcprof.artifacts.atomic import read_json, write_json, write_text
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.pipeline.analysis import analyse, figures
from hpcprof.pipeline.ingest import ingest
from hpcprof.pipeline.memory import memory_of_ranks
from hpcprof.reports.document import build_document
from hpcprof.reports.findings_record import findings_record
from hpcprof.reports.html import render_html
from hpcprof.trace.model import JobInfo
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class Collected:
    """What ``collect`` made: the findings record, and what went wrong on the way, in words.

    ``page``: where the page is; None when none could be written.
    """

    record: dict[str, Any]
    warnings: tuple[str, ...]
    page: Path | None = None


def collect(run_dir: Path) -> Collected:
    """Ingest, align, analyse and judge one run; writes ``store/``, ``findings.json`` and
    ``report.html`` into it.

    A run folder that cannot be written (disk full, somebody else's) is still judged: the store
    then goes to a temporary folder and nothing is kept. Raises InputError when the folder is no
    run, or no rank left anything.
    """
    paths = ArtifactPaths(run_dir)
    if not paths.rank_ids():
        raise InputError(
            f"{run_dir} is no run folder, or no rank of it ever started: {paths.ranks} holds no "
            "rank. The run folder is named in the job's output and by hpcprof submit."
        )
    try:
        record, warnings = _judge(paths, paths.store)
        write_json(paths.findings, record)
    except OSError as error:
        with tempfile.TemporaryDirectory(prefix="hpcprof-") as folder:
            record, warnings = _judge(paths, Path(folder))
        warnings.append(
            f"the run folder cannot be written ({error.strerror}: {error.filename}); the verdict "
            "is printed only. Make room and run collect again to keep it."
        )
        return Collected(record, tuple(warnings))
    try:
        page = write_page(paths, record, paths.report_html, warnings)
    except InputError as error:
        warnings.append(str(error))
        page = None
    return Collected(record, tuple(warnings), page)


def _judge(paths: ArtifactPaths, store_path: Path) -> tuple[dict[str, Any], list[str]]:
    ingested = ingest(paths, TraceStore(store_path))
    warnings = list(ingested.warnings)
    if not ingested.store.ranks():
        raise InputError(f"no rank of {paths.root} can be read: {'; '.join(warnings)}")
    analysis = analyse(ingested, job_info(paths, ingested.store, warnings))
    write_json(ingested.store.path / paths.figures.name, figures(ingested, analysis))
    memory = memory_of_ranks(paths, analysis.results.ranks)
    results = replace(analysis.results, memory=memory)
    findings = find(results)
    return findings_record(results, findings, list(healthy(results, findings))), warnings


def write_page(
    paths: ArtifactPaths, record: dict[str, Any], output: Path, warnings: list[str]
) -> Path:
    """Write the page of a collected run to ``output`` and return that; computes nothing.

    A page without figures, with the reason in ``warnings``, when what they show cannot be read.
    Raises InputError when the page cannot be written.
    """
    drawn = None
    if paths.figures.exists():
        try:
            drawn = read_json(paths.figures, "what the figures show")
        except InputError as error:
            warnings.append(f"{error}; the page has no figures")
    try:
        write_text(output, render_html(build_document(record), record, drawn))
    except OSError as error:
        raise InputError(
            f"the page cannot be written: {output} ({error.strerror}); name another file with "
            "hpcprof report RUN_DIR --format html -o FILE"
        ) from None
    return output


def job_info(paths: ArtifactPaths, store: TraceStore, warnings: list[str]) -> JobInfo:
    """The job as its record says; what that does not say, from the ranks, with a warning."""
    try:
        return readers.read_job(paths)
    except InputError as error:
        warnings.append(f"{error}; the job's name and size are taken from its ranks")
    infos = [store.rank_info(rank) for rank in store.ranks()]
    nodes = tuple(sorted({info.node for info in infos}))
    return JobInfo(paths.root.name, "", "", max(info.world_size for info in infos), nodes)
