"""Reads what tf.profiler left of a rank (XPlane files) into spans on the node's clock.

Times in a file count from the start of the profile; since TensorFlow 2.16 or so a file says when
that was, before it does not. What ties them to the node's CLOCK_MONOTONIC are the events that
``annotate/tf_profiler`` placed between two readings of it (``nsys_clock`` says how).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.errors import EnvironmentLacksError, InputError
from hpcprof.readers.nsys_clock import Placement, place
from hpcprof.readers.xplane_device import gpu_planes, read_device
from hpcprof.readers.xplane_file import Plane, Space, read_space
from hpcprof.readers.xplane_host import HostRows, read_host, read_marks
from hpcprof.readers.xplane_memory import read_memory
from hpcprof.trace.check import check_spans
from hpcprof.trace.columns import TF_PROFILE
from hpcprof.trace.frame import anchors_frame, concat_spans, empty_spans
from hpcprof.trace.memory import MemoryRecord
from hpcprof.trace.model import SourceState, Training

_HOST_PLANE = "/host:CPU"


@dataclass(frozen=True)
class TfProfile:
    """What tf.profiler recorded of a rank, on the CLOCK_MONOTONIC of its node.

    ``steps`` are the steps as they were marked for the profiler, copies of those in spans.bin;
    ``spans`` are everything else, without steps. Both are empty unless ``state`` is usable.
    """

    spans: pd.DataFrame
    steps: pd.DataFrame
    state: SourceState


class TfMemory(NamedTuple):
    """What allocators of a rank did while tf.profiler recorded it, and the steps meanwhile.

    Both on the clock of the file, or on CLOCK_MONOTONIC where marks of ours are in it.
    """

    record: MemoryRecord
    steps: pd.DataFrame


@dataclass(frozen=True)
class PlacedSpace:
    """One file, what its host plane says of time, and how its times become CLOCK_MONOTONIC."""

    space: Space
    hosts: tuple[HostRows, ...]
    placement: Placement | None


def read_tf_profile(
    folder: Path, rank: int, anchors: pd.DataFrame, training: Training | None
) -> TfProfile:
    """Read the log folder of tf.profiler. Raises nothing: the state says what is missing and why.

    ``anchors`` (``trace.columns.ANCHOR_COLUMNS``) tie the node's two clocks together, for files
    without marks of ours. ``training`` helps to tell the phases of operations.
    """
    files = xplane_files(folder)
    if not files:
        return _nothing(*_why_no_file(folder))
    placed = []
    problems: list[str] = []
    for file in files:
        try:
            placed.append(_read_file(file, rank, anchors, training))
        except (InputError, EnvironmentLacksError) as error:
            problems.append(str(error).replace(f"{folder}/", ""))
    usable = [each for each in placed if each.placement is not None]
    if len(usable) < len(placed):
        problems.append("nothing ties its times to the node's clock (no mark of hpcprof in it)")
    if not usable:
        return _nothing(manifest.LOST, problems[0].removesuffix("."))
    spans = check_spans(concat_spans([_spans(each, training) for each in usable]))
    steps = concat_spans([placement.apply(host.steps) for _, host, placement in _each_host(usable)])
    return TfProfile(spans, steps, _state(usable, spans, problems))


def read_tf_memory(folder: Path, rank: int, training: Training | None) -> TfMemory:
    """What allocators did, of the last file: blocks are not followed from one to the next.

    Without rows where there is no file, or none that can be read; ``read_tf_profile`` says why.
    """
    try:
        spaces = [read_space(file, rank) for file in xplane_files(folder)[-1:]]
    except (InputError, EnvironmentLacksError):
        spaces = []
    planes = [(space, plane) for space in spaces for plane in _host_planes(space)]
    if not planes:
        return TfMemory(MemoryRecord(), empty_spans())
    space, plane = planes[0]
    steps, beacons = read_marks(plane)
    record = read_memory(plane, training)
    no_anchors = anchors_frame({"seq": [], "before_ns": [], "after_ns": [], "realtime_ns": []})
    placement = _place(space, [beacons], no_anchors)
    if placement is None or not len(record.levels):
        return TfMemory(record, steps)
    moved = {
        name: placement.moved(record.blocks[name].to_numpy()) for name in ("start_ns", "end_ns")
    }
    op_end = record.blocks["op_end_ns"].to_numpy()
    blocks = record.blocks.assign(**moved, op_end_ns=placement.moved(op_end) * (op_end > 0))
    levels = record.levels.assign(time_ns=placement.moved(record.levels["time_ns"].to_numpy()))
    return TfMemory(MemoryRecord(blocks, levels), placement.apply(steps))


def xplane_files(folder: Path) -> list[Path]:
    """The XPlane files below a log folder, oldest first; [] where there is none, or no folder."""
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


def _read_file(
    file: Path, rank: int, anchors: pd.DataFrame, training: Training | None
) -> PlacedSpace:
    space = read_space(file, rank)
    hosts = tuple(read_host(plane, training) for plane in _host_planes(space))
    placement = _place(space, [host.beacons for host in hosts], anchors)
    return PlacedSpace(space, hosts, placement)


def _host_planes(space: Space) -> list[Plane]:
    return [plane for plane in space.planes if plane.name == _HOST_PLANE]


def _place(space: Space, beacons: list[pd.DataFrame], anchors: pd.DataFrame) -> Placement | None:
    if not beacons:
        return None
    return place(pd.concat(beacons, ignore_index=True), anchors, space.start_ns)


def _each_host(placed: list[PlacedSpace]) -> list[tuple[Space, HostRows, Placement]]:
    return [
        (each.space, host, each.placement)
        for each in placed
        for host in each.hosts
        if each.placement is not None
    ]


def _spans(placed: PlacedSpace, training: Training | None) -> pd.DataFrame:
    tables = [table for host in placed.hosts for table in host.spans]
    gpus = gpu_planes(placed.space.planes)
    tables += [read_device(plane, replica, training) for plane, replica in gpus]
    joined = concat_spans(tables)
    return joined if placed.placement is None else placed.placement.apply(joined)


def _state(usable: list[PlacedSpace], spans: pd.DataFrame, problems: list[str]) -> SourceState:
    placements = [each.placement for each in usable if each.placement is not None]
    bound = max(placement.bound_ns for placement in placements)
    if any(placement.is_guess for placement in placements):
        problems = [
            *problems,
            "it holds no mark of hpcprof, so its times follow from its start in UTC and may be "
            f"{bound / 1e6:.0f} ms off",
        ]
    problems += [text for each in usable for text in each.space.errors]
    notes = [text for each in usable for text in each.space.warnings]
    unfinished = sum(host.unfinished for each in usable for host in each.hosts)
    if unfinished:
        notes.append(f"{unfinished} collectives had not ended when the recording did")
    state = manifest.PARTIAL if problems else manifest.OK
    if not len(spans):
        state, problems = manifest.EMPTY, [*problems, "no operation was recorded"]
    reason = problems[0].removesuffix(".") if problems else ""
    return SourceState(
        TF_PROFILE,
        state,
        reason,
        rows=len(spans),
        clock_bound_ns=bound,
        warnings=(*problems, *notes),
    )


def _why_no_file(folder: Path) -> tuple[str, str]:
    if not folder.is_dir():
        return manifest.NOT_PROFILED, "tf.profiler did not record this rank"
    return manifest.LOST, (
        "tf.profiler was started and left no file: the rank was killed before the last step that "
        "was to be recorded, or the file could not be written (see the rank's warnings)"
    )


def _nothing(state: str, reason: str) -> TfProfile:
    return TfProfile(empty_spans(), empty_spans(), SourceState(TF_PROFILE, state, reason))
