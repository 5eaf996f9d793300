"""Merges the sources of one rank into one trace on the clock of its node.

Its sources are spans.bin ("spans"), nsys's report ("nsys"), and where they were wanted the ranges
of our own recorder ("recorder") and tf.profiler's files ("tfprof").
``spans.bin`` is the truth for steps and phases. The copies of them that nsys recorded are compared
with it and dropped; they replace it only when it is lost. A source that cannot be used is recorded
with its reason and never keeps the others, or another rank, from being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import EnvironmentLacksError, InputError
from hpcprof.readers.manifest_reader import RankManifest, read_manifest, unbracketed_anchors
from hpcprof.readers.nsys_clock import Placement, place
from hpcprof.readers.nsys_files import exported, find_recording
from hpcprof.readers.nsys_sqlite import NsysExport, read_export
from hpcprof.readers.nsys_tools import NsysTools
from hpcprof.readers.self_recorded import Recorded, read_profile, read_recorder
from hpcprof.readers.spans_reader import SpanRecords, read_span_file
from hpcprof.readers.states import (
    as_launch_said,
    describe,
    lost,
    no_ranges,
    nsys_state,
    recording_state,
    spans_state,
    with_steps,
)
from hpcprof.readers.steps import assign_steps, beside_steps, step_numbers
from hpcprof.readers.training_file import read_training
from hpcprof.trace.check import check_spans
from hpcprof.trace.columns import BEFORE_NS, END_NS, KIND, STEP, STEP_KIND
from hpcprof.trace.frame import concat_spans, empty_spans
from hpcprof.trace.model import Hang, SourceState, Trace, Training

_NO_STEP_SEEN = (
    "hooks saw no step of this training (they know Keras's fit, loops over tf.data and functions "
    "that take gradients; not tf.compat.v1 sessions), and the script marks none"
)


class NodeAnchors(NamedTuple):
    """What ties a node's CLOCK_MONOTONIC to the wall clock, as one rank recorded it.

    ``table`` has the columns ``trace.columns.ANCHOR_COLUMNS``; it may have no rows.
    """

    node: str
    table: pd.DataFrame


def read_anchors(paths: ArtifactPaths, rank: int) -> NodeAnchors:
    """Only what ties the rank's clock to the wall clock: cheap, no nsys needed.

    Raises InputError when the manifest cannot be read: the node is then unknown.
    """
    record = read_manifest(paths, rank)
    return NodeAnchors(record.info.node, _anchors(record, _read_own(paths, rank)[0]))


def read_rank(paths: ArtifactPaths, rank: int, workdir: Path, tools: NsysTools | None) -> Trace:
    """Read everything the rank left, on the CLOCK_MONOTONIC of its node.

    ``workdir`` must exist and takes temporary exports; ``tools`` is None without nsys. A rank of
    which nothing could be read gives a trace without spans that says why in ``trace.rank``.
    Raises InputError only when the manifest cannot be read.
    """
    record = read_manifest(paths, rank)
    training, notes = read_training(paths, rank)
    own, own_state = _read_own(paths, rank)
    if (
        own is None
        and training is not None
        and not training.steps
        and not paths.spans(rank).exists()
    ):
        own_state = lost("spans", _NO_STEP_SEEN)
    known = _Rank(paths, record, own, training)
    seen, nsys_state = _read_nsys(known, workdir, tools)
    sources = {"spans": own_state, "nsys": nsys_state}
    tables = [own.spans, seen] if own else [seen]
    for recorded in _self_recorded(known, tables, nsys_state):
        tables.append(recorded.spans)
        if recorded.state is not None:
            sources[recorded.state.name] = recorded.state
    state, reason = recording_state(sources, record)
    info = replace(
        record.info,
        pid=own.pid if own else record.info.pid,
        state=state,
        reason=reason,
        sources=sources,
        warnings=(*record.info.warnings, *notes),
        hangs=_dated(record.info.hangs, own),
        training=training,
    )
    spans = concat_spans([*tables, record.notes.busy_spans()])
    return Trace(info, check_spans(beside_steps(spans, own.spans) if own else spans))


class _Rank(NamedTuple):
    """What is known of the rank when its further sources are read."""

    paths: ArtifactPaths
    record: RankManifest
    own: SpanRecords | None
    training: Training | None


def _self_recorded(
    known: _Rank, tables: list[pd.DataFrame], nsys: SourceState
) -> Iterator[Recorded]:
    """What the training recorded of itself, source by source; ``tables`` grow meanwhile."""
    paths, record, own, training = known
    spans = concat_spans(tables)
    pid = own.pid if own else None
    yield read_recorder(paths, record, spans, training, has_nsys=nsys.is_usable, pid=pid)
    anchors = _anchors(record, own)
    yield read_profile(paths, record, concat_spans(tables), anchors, training)


def _read_own(paths: ArtifactPaths, rank: int) -> tuple[SpanRecords | None, SourceState]:
    path = paths.spans(rank)
    if not path.exists():
        reason = (
            "the training recorded no spans: no hook was at work in it and "
            "hpcprof.annotate was not called, or its recording failed (see the rank's warnings)"
        )
        return None, lost("spans", reason)
    try:
        own = read_span_file(path, rank)
    except InputError as error:
        return None, lost("spans", str(error))
    return own, spans_state(own)


def _read_nsys(
    known: _Rank, workdir: Path, tools: NsysTools | None
) -> tuple[pd.DataFrame, SourceState]:
    paths, record, own, training = known
    rank = record.info.rank
    recording = find_recording(paths, rank)
    if recording is None:
        return empty_spans(), _state_without_recording(record)
    pid = own.pid if own else record.info.pid
    try:
        with exported(recording, rank, workdir, tools) as database:
            export = read_export(database, pid, record.visible_devices, training)
    except EnvironmentLacksError as error:
        text = f"{error} It was recorded by {record.profiler_note}"
        return empty_spans(), lost("nsys", _without_folder(text, paths, rank))
    except InputError as error:
        return empty_spans(), lost("nsys", _without_folder(str(error), paths, rank))
    if not len(export.spans) and not len(export.own):
        state = SourceState("nsys", manifest.EMPTY, warnings=export.warnings)
        return empty_spans(), replace(state, reason=_why_empty(paths, record, own, recording))
    placement = place(export.beacons, _anchors(record, own), export.utc_epoch_ns)
    if placement is None:
        reason = "nothing ties the report's times to the node's clock (no beacon, no UTC start)"
        return empty_spans(), lost("nsys", reason)
    spans, state = _placed(export, placement, own, no_ranges(record))
    return spans, as_launch_said(state, record)


def _why_empty(
    paths: ArtifactPaths, record: RankManifest, own: SpanRecords | None, recording: Path
) -> str:
    """Why a report without any event has none, as far as anybody knows."""
    reason = f"the report holds no event of the training: {recording}"
    because = record.state_reason if record.state == manifest.EMPTY else ""
    if record.notes.nvtx_version and own is not None and len(step_numbers(own.spans)):
        because = because or no_ranges(record)
    return _without_folder(f"{reason}: {because}" if because else reason, paths, record.info.rank)


def _without_folder(text: str, paths: ArtifactPaths, rank: int) -> str:
    """The reason without the rank's folder: then it is the same for all ranks, and told once."""
    return text.replace(f"{paths.rank_folder(rank)}/", "")


def _placed(
    export: NsysExport, placement: Placement, own: SpanRecords | None, without_ranges: str
) -> tuple[pd.DataFrame, SourceState]:
    """The report's spans on the node's clock with their steps, and what there is to say of them.

    ``without_ranges``: what to say when none of our ranges is among them.
    """
    copies = placement.apply(export.own)
    spans = placement.apply(export.spans)
    if own is None:
        copies = assign_steps(copies, copies)
        spans = concat_spans([assign_steps(spans, copies), copies])
    else:
        spans = assign_steps(spans, own.spans)
    recorded = None if own is None else own.spans
    state = nsys_state(export, placement, copies, recorded, without_ranges)
    return spans, with_steps(state, spans, copies)


def _state_without_recording(record: RankManifest) -> SourceState:
    if record.profiler == "none":
        default = "no profiler was asked for"
        if record.info.ended is None:
            default = "not known: it was killed before it could say why"
        return SourceState("nsys", manifest.NOT_PROFILED, record.state_reason or default)
    if record.state in (manifest.EMPTY, manifest.LOST) and record.state_reason:
        return SourceState("nsys", record.state, record.state_reason)
    ended = describe(record.info)
    because = f": {ended}" if ended else ""
    return lost("nsys", f"{record.profiler} left no report{because}")


def _anchors(record: RankManifest, own: SpanRecords | None) -> pd.DataFrame:
    moments = [moment for moment in (record.info.started, record.info.ended) if moment]
    if own is None:
        return unbracketed_anchors(moments)
    return _joined(own.anchors, unbracketed_anchors([own.opened, *moments]))


def _dated(hangs: tuple[Hang, ...], own: SpanRecords | None) -> tuple[Hang, ...]:
    """The hangs with the step after which they came, where our records tell and nobody knew."""
    if own is None:
        return hangs
    steps = own.spans[own.spans[KIND] == STEP_KIND]
    dated = []
    for hang in hangs:
        if hang.step is None and hang.at_ns is not None:
            ended = steps.loc[steps[END_NS] <= hang.at_ns, STEP].dropna()
            hang = hang._replace(step=int(ended.max()) if len(ended) else -1)
        dated.append(hang)
    return tuple(dated)


def _joined(one: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    tables = [table for table in (one, two) if len(table)]
    if not tables:
        return one
    joined: pd.DataFrame = pd.concat(tables, ignore_index=True).sort_values(BEFORE_NS)
    ordered: pd.DataFrame = joined.reset_index(drop=True)
    return ordered
