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
from hpcprof.artifacts.atomic import read_json, write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.readers.slurm_accounting import job_record
from hpcprof.reports.findings_record import findings_record
from hpcprof.trace import columns as c
from hpcprof.trace.model import JobInfo, RankInfo
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
    rank_ids = paths.rank_ids()
    if not rank_ids:
        raise InputError(
            f"{run_dir} is no run folder, or no rank of it ever started: {paths.ranks} holds no "
            "rank. The run folder is named in the job's output and by hpcprof submit."
        )
    warnings: list[str] = []
    run = _run_record(paths, warnings)
    try:
        record = _judge(paths, run, rank_ids, paths.store)
        write_json(paths.findings, record)
    except OSError as error:
        warnings.append(
            f"the run folder cannot be written ({error.strerror}: {error.filename}); the verdict "
            "is printed only. Make room and run collect again to keep it."
        )
        with tempfile.TemporaryDirectory(prefix="hpcprof-") as folder:
            record = _judge(paths, run, rank_ids, Path(folder))
    return Collected(record, tuple(warnings))


def _judge(
    paths: ArtifactPaths, run: Mapping[str, Any], rank_ids: list[int], store_path: Path
) -> dict[str, Any]:
    store = TraceStore(store_path)
    clocks = _ingest(paths, rank_ids, store)
    results = analyse(store, run, clocks)
    findings = find(results)
    return findings_record(results, findings, list(healthy(results, findings)))


def _run_record(paths: ArtifactPaths, warnings: list[str]) -> dict[str, Any]:
    try:
        return read_json(paths.run_json, "the run's record")
    except InputError as error:
        warnings.append(f"{error}; job name, strategy and number of ranks are taken from the ranks")
        return {}


def _ingest(
    paths: ArtifactPaths, rank_ids: list[int], store: TraceStore
) -> dict[str, align.NodeClock]:
    """Read every rank into the store, one at a time, on the job's clock."""
    anchors: dict[str, dict[int, pd.DataFrame]] = {}
    for rank in rank_ids:
        node, table = readers.read_anchors(paths, rank)
        anchors.setdefault(node, {})[rank] = table
    clocks = align.fit_nodes(anchors)
    t0_ns = align.job_start(clocks, anchors)
    work = store.path / "work"
    tools = readers.find_tools()
    try:
        for rank in rank_ids:
            work.mkdir(parents=True, exist_ok=True)
            trace = readers.read_rank(paths, rank, work, tools)
            store.write(align.apply(trace, clocks[trace.rank.node], t0_ns))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return clocks


def analyse(
    store: TraceStore, run: Mapping[str, Any], clocks: Mapping[str, align.NodeClock]
) -> RunResults:
    """Everything that is computed about a run, from its store.

    ``run`` is run.json; missing keys are filled from the ranks.
    """
    infos = tuple(store.rank_info(rank) for rank in store.ranks())
    world_size = run.get("world_size") or max(info.world_size for info in infos)
    form = _collective_form(store, infos)
    frames = {
        info.rank: arrivals.per_rank(store.read_spans(info.rank, arrivals.COLUMNS_READ), form)
        for info in infos
        if form != arrivals.NONE
    }
    matrix = step_matrix.across_ranks(frames, world_size)
    node_of = {info.rank: info.node for info in infos}
    verdict = stragglers(matrix, node_of)
    return RunResults(
        job=_job(run, infos, world_size),
        ranks=infos,
        missing=tuple(sorted(set(range(world_size)) - set(node_of))),
        clocks=clocks,
        collective_form=form,
        payload_bytes=_payload(frames, form),
        has_device_activity=any(_has_kernels(store, info.rank) for info in infos),
        stragglers=verdict,
        causes=tuple(cause(matrix, found, verdict.baseline_ranks) for found in verdict.found),
        phase_times=phase_times(matrix),
        left_out=matrix.left_out,
        job_end=_job_end(run.get("job_id") or ""),
    )


def _job(run: Mapping[str, Any], infos: tuple[RankInfo, ...], world_size: int) -> JobInfo:
    return JobInfo(
        name=run.get("name", "unknown"),
        job_id=str(run.get("job_id") or ""),
        strategy=run.get("strategy", ""),
        world_size=world_size,
        nodes=tuple(sorted({info.node for info in infos})),
    )


def _collective_form(store: TraceStore, infos: tuple[RankInfo, ...]) -> str:
    """The finest form that every rank with any collective has: mixing two would accuse somebody."""
    forms = [
        arrivals.collective_forms(store.read_spans(info.rank, arrivals.COLUMNS_READ))
        for info in infos
    ]
    present = [each for each in forms if each]
    for form in (arrivals.PROFILER, arrivals.MARKED):
        if present and all(form in each for each in present):
            return form
    return arrivals.NONE


def _payload(frames: Mapping[int, pd.DataFrame], form: str) -> int | None:
    """Median allreduce bytes per step; None when the source gave none."""
    medians = [int(frame["bytes"].median()) for frame in frames.values() if len(frame)]
    return max(medians, default=0) or None


def _has_kernels(store: TraceStore, rank: int) -> bool:
    return len(store.read_spans(rank, [c.START_NS], kinds=[c.KERNEL])) > 0


def _job_end(job_id: str) -> JobEnd | None:
    found = job_record(job_id)
    return None if found is None else JobEnd(*found)
