"""Chains the rooms: files of a job → store → results → findings → record.

No room calls the next; this module does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hpcprof import align, readers
from hpcprof.analyses import arrivals, step_matrix
from hpcprof.analyses.causes import cause
from hpcprof.analyses.phase_times import phase_times
from hpcprof.analyses.run_results import JobEnd, RunResults
from hpcprof.analyses.stragglers import stragglers
from hpcprof.artifacts.atomic import write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.run_record import launch_settings
from hpcprof.errors import InputError
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.readers.slurm_accounting import job_record
from hpcprof.reports.findings_record import findings_record
from hpcprof.trace import columns as c
from hpcprof.trace.model import JobInfo
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class Collected:
    """What ``collect`` made: the findings record, and what went wrong on the way, in words."""

    record: dict[str, Any]
    warnings: tuple[str, ...]


def collect(run_dir: Path) -> Collected:
    """Ingest, align, analyse and judge one run; writes ``store/`` and ``findings.json`` into it.

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


def _judge(paths: ArtifactPaths, store_path: Path) -> tuple[dict[str, Any], list[str]]:
    store = TraceStore(store_path)
    warnings: list[str] = []
    clocks = _ingest(paths, store, warnings)
    if not store.ranks():
        raise InputError(f"no rank of {paths.root} can be read: {'; '.join(warnings)}")
    results = analyse(store, _job(paths, store, warnings), clocks)
    findings = find(results)
    return findings_record(results, findings, list(healthy(results, findings))), warnings


def _job(paths: ArtifactPaths, store: TraceStore, warnings: list[str]) -> JobInfo:
    try:
        return readers.read_job(paths)
    except InputError as error:
        warnings.append(f"{error}; the job's name and size are taken from its ranks")
    infos = [store.rank_info(rank) for rank in store.ranks()]
    nodes = tuple(sorted({info.node for info in infos}))
    return JobInfo(paths.root.name, "", "", max(info.world_size for info in infos), nodes)


def _ingest(
    paths: ArtifactPaths, store: TraceStore, warnings: list[str]
) -> dict[str, align.NodeClock]:
    """Read every rank into the store, one at a time, on the job's clock.

    A rank that cannot be read is told in ``warnings`` and left out; it does not spoil the others.
    """
    anchors: dict[str, dict[int, pd.DataFrame]] = {}
    for rank in paths.rank_ids():
        try:
            node, table = readers.read_anchors(paths, rank)
        except InputError as error:
            warnings.append(str(error))
            continue
        anchors.setdefault(node, {})[rank] = table
    clocks = align.fit_nodes(anchors)
    warnings += [warning for clock in clocks.values() for warning in clock.warnings]
    t0_ns = align.job_start(clocks, anchors)
    tools = readers.find_tools(_nsys_setting(paths))
    work = store.path / "work"
    # what an earlier collect left may be of ranks that can no longer be read
    shutil.rmtree(store.path, ignore_errors=True)
    try:
        for node, ranks in anchors.items():
            for rank in ranks:
                work.mkdir(parents=True, exist_ok=True)
                trace = readers.read_rank(paths, rank, work, tools)
                try:
                    store.write(align.apply(trace, clocks[node], t0_ns))
                except InputError as error:
                    warnings.append(str(error))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return clocks


def _nsys_setting(paths: ArtifactPaths) -> str | None:
    """Where the job looked for nsys, if its record names a place."""
    try:
        setting = launch_settings(paths.run_json)["nsys_path"]
    except InputError:
        return None
    return None if setting is None else str(setting)


def analyse(store: TraceStore, job: JobInfo, clocks: Mapping[str, align.NodeClock]) -> RunResults:
    """Everything that is computed about a run, from its store."""
    infos = tuple(store.rank_info(rank) for rank in store.ranks())
    spans = {
        info.rank: store.read_spans(info.rank, arrivals.COLUMNS_READ, arrivals.KINDS_READ)
        for info in infos
    }
    form = _collective_form(spans)
    frames = {}
    if form != arrivals.NONE:
        frames = {rank: arrivals.per_rank(table, form) for rank, table in spans.items()}
    matrix = step_matrix.across_ranks(frames, job.world_size)
    node_of = {info.rank: info.node for info in infos}
    verdict = stragglers(matrix, node_of)
    return RunResults(
        job=job,
        ranks=infos,
        missing=tuple(sorted(set(range(job.world_size)) - set(node_of))),
        clocks=clocks,
        collective_form=form,
        payload_bytes=_payload(frames),
        has_device_activity=any(_has_kernels(store, info.rank) for info in infos),
        stragglers=verdict,
        causes=tuple(cause(matrix, found, verdict.baseline_ranks) for found in verdict.found),
        phase_times=phase_times(matrix),
        left_out=matrix.left_out,
        job_end=_job_end(job.job_id),
    )


def _collective_form(spans: Mapping[int, pd.DataFrame]) -> str:
    """The finest form that every rank with any collective has: mixing two would accuse somebody."""
    present = [forms for table in spans.values() if (forms := arrivals.collective_forms(table))]
    for form in (arrivals.PROFILER, arrivals.MARKED):
        if present and all(form in forms for forms in present):
            return form
    return arrivals.NONE


def _payload(frames: Mapping[int, pd.DataFrame]) -> int | None:
    """Median allreduce bytes per step; None when the source gave none."""
    medians = [int(frame["bytes"].median()) for frame in frames.values() if len(frame)]
    return max(medians, default=0) or None


def _has_kernels(store: TraceStore, rank: int) -> bool:
    return len(store.read_spans(rank, [c.START_NS], kinds=[c.KERNEL])) > 0


def _job_end(job_id: str) -> JobEnd | None:
    found = job_record(job_id)
    return None if found is None else JobEnd(*found)
