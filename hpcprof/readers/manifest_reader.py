"""Reads ``manifest.json`` of a rank and ``run.json``: who the ranks were. Does not judge states."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hpcprof.artifacts.atomic import read_json
from hpcprof.artifacts.manifest import SCHEMA
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError
from hpcprof.readers.manifest_notes import ManifestNotes, manifest_notes
from hpcprof.trace.columns import NO_BRACKET
from hpcprof.trace.frame import anchors_frame
from hpcprof.trace.model import JobInfo, Moment, RankInfo

_TRACE_RE = re.compile(r"(--trace(=|\Z)|-t)(?P<kinds>.*)\Z", re.DOTALL)


@dataclass(frozen=True)
class RankManifest:
    """What launch wrote down. ``info`` has no sources yet.

    ``profiler`` is "none" when none was asked for or could be started, and ``state_reason`` says
    why; ``profiler_note`` names program, version and node, ``profiler_version`` is "" when unknown.
    ``traced``: the kinds of events that nsys was told to record; None when not known.
    ``state`` is what launch thought of the recording without looking into it, "" before the end.
    ``recorder``: "nvtx" where our own listened to NVTX, else "none".
    """

    info: RankInfo
    job_id: str
    profiler: str
    profiler_note: str
    profiler_version: str
    traced: frozenset[str] | None
    state: str
    state_reason: str
    visible_devices: str | None
    notes: ManifestNotes
    recorder: str


def read_manifest(paths: ArtifactPaths, rank: int) -> RankManifest:
    """The manifest of one rank. Raises InputError: without it nobody knows the rank's node."""
    path = paths.manifest(rank)
    record = read_json(path, f"manifest of rank {rank}")
    if record.get("schema") != SCHEMA:
        raise InputError(
            f"rank {rank}: {path} has schema {record.get('schema')}, this hpcprof reads {SCHEMA}. "
            "Run collect with the hpcprof version of the job."
        )
    if record.get("rank") != rank:
        raise InputError(f"rank {rank}: {path} belongs to rank {record.get('rank')}")
    try:
        info = _rank_info(record)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"rank {rank}: {path} is not a manifest ({error!r})") from None
    profiler = record.get("profiler")
    if not isinstance(profiler, dict):
        profiler = {}
    notes = manifest_notes(record)
    return RankManifest(
        info=_with_notes(info, notes),
        job_id=str(record.get("job_id", "")),
        profiler="none" if profiler.get("fell_back") else str(profiler.get("name", "none")),
        profiler_note=_profiler_note(profiler, info.node),
        profiler_version=str(profiler.get("version") or ""),
        traced=_traced(profiler.get("argv")),
        state=str(record.get("state") or ""),
        state_reason=str(record.get("state_reason") or ""),
        visible_devices=record.get("cuda_visible_devices"),
        notes=notes,
        recorder=_name(record.get("recorder")),
    )


def read_job(paths: ArtifactPaths) -> JobInfo:
    """The job as run.json and the manifests that can be read tell it.

    Raises InputError when run.json cannot be read. ``world_size`` is the largest anybody names.
    """
    run = read_json(paths.run_json, "the run's record")
    manifests = []
    for rank in paths.rank_ids():
        try:
            manifests.append(read_manifest(paths, rank))
        except InputError:
            continue  # reading that rank reports it; the job is known without it
    sizes = [run.get("world_size") or 0, *(m.info.world_size for m in manifests)]
    return JobInfo(
        name=str(run.get("name", "")),
        job_id=next((m.job_id for m in manifests if m.job_id), ""),
        strategy=str(run.get("strategy", "")),
        world_size=max(int(size) for size in sizes),
        nodes=tuple(sorted({m.info.node for m in manifests})),
    )


def unbracketed_anchors(moments: list[Moment]) -> pd.DataFrame:
    """Pairs of the two clocks that were read one after the other, as anchors."""
    monotonic = [moment.monotonic_ns for moment in moments]
    return anchors_frame(
        {
            "seq": [NO_BRACKET] * len(moments),
            "before_ns": monotonic,
            "after_ns": monotonic,
            "realtime_ns": [moment.realtime_ns for moment in moments],
        }
    )


def _name(program: Any) -> str:
    return str(program.get("name", "none")) if isinstance(program, dict) else "none"


def _profiler_note(profiler: dict[str, Any], node: str) -> str:
    version = profiler.get("version") or "of unknown version"
    return f"{profiler.get('path') or profiler.get('name')} ({version}) on {node}"


def _traced(argv: Any) -> frozenset[str] | None:
    """What every --trace of nsys's command line names: an option that a user adds comes last."""
    words = argv if isinstance(argv, list) else []
    lists = [match["kinds"] for word in words if (match := _TRACE_RE.match(str(word))) is not None]
    if not lists or not all(lists):  # not known, or in the next word
        return None
    return frozenset(kind for kinds in lists for kind in kinds.split(","))


def _rank_info(record: dict[str, Any]) -> RankInfo:
    return RankInfo(
        rank=int(record["rank"]),
        local_rank=int(record["local_rank"]),
        node=str(record["node"]),
        world_size=int(record["world_size"]),
        pid=_optional_int(record.get("pid")),
        exit_code=_optional_int(record.get("exit_code")),
        started=_moment(record.get("started")),
        ended=_moment(record.get("ended")),
        warnings=tuple(str(text) for text in record.get("warnings") or ()),
    )


def _with_notes(info: RankInfo, notes: ManifestNotes) -> RankInfo:
    return replace(
        info,
        warnings=(*info.warnings, *notes.warnings),
        gpus=notes.gpus,
        horovod_size=notes.horovod_size,
        hangs=notes.hangs,
    )


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _moment(value: Any) -> Moment | None:
    if value is None:
        return None
    return Moment(int(value["realtime_ns"]), int(value["monotonic_ns"]))
