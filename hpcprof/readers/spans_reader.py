"""Reads ``spans.bin``, our own span records. Does not judge whether the rank is complete.

What becomes of a record: a step is a span of kind ``step``; a phase is *one* span of kind ``phase``
whose ``phase`` and ``activity`` follow from its name, and for the phase ``allreduce`` also ``op``
(and ``bytes`` when recorded), so that it serves as the collective where nothing finer was recorded;
times at which the profiler was at work are ``busy`` and belong to no step; everything else is
``host``. Steps and phases belong to replica 0 of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.artifacts import span_format as fmt
from hpcprof.errors import InputError
from hpcprof.trace.check import check_spans
from hpcprof.trace.columns import (
    ALLREDUCE,
    BUSY,
    HOST,
    OTHER,
    PHASE_ACTIVITY,
    PHASE_KIND,
    PHASES,
    STEP_KIND,
)
from hpcprof.trace.frame import anchors_frame, coded, nullable_int, spans_frame
from hpcprof.trace.model import Moment

SOURCE = "hpcprof"
_RECORD_DTYPE = np.dtype(
    [
        *(("start", "<i8"), ("end", "<i8"), ("name", "<u4"), ("step", "<i4")),
        *(("thread", "<u4"), ("flags", "<u4"), ("value", "<i8")),
    ]
)
# a longer "name" is damage: believing its length would swallow the records behind it
_LONGEST_NAME_BYTES = 64 * 1024
_SPAN_KINDS = {
    fmt.KIND_HOST: HOST,
    fmt.KIND_STEP: STEP_KIND,
    fmt.KIND_PHASE: PHASE_KIND,
    fmt.KIND_BUSY: BUSY,
}
_OF_THE_TRAINING = (fmt.KIND_STEP, fmt.KIND_PHASE)

if _RECORD_DTYPE.itemsize != fmt.BLOCK_BYTES:
    raise AssertionError("the numpy dtype must be the record of span_format")


@dataclass(frozen=True)
class SpanRecords:
    """Content of one ``spans.bin``. Times are CLOCK_MONOTONIC ns of the node.

    ``opened`` is when the file was made; ``anchors`` are the beacons. ``torn`` says that the last
    record was cut in the middle, ``damaged`` counts records that make no sense and were left out.
    """

    rank: int
    pid: int
    opened: Moment
    spans: pd.DataFrame
    anchors: pd.DataFrame
    torn: bool
    damaged: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was lost, in words; empty when nothing was."""
        texts = []
        if self.torn:
            texts.append(
                "the last record was cut in the middle and left out (killed while writing)"
            )
        if self.damaged:
            texts.append(f"{self.damaged} records make no sense and were left out")
        return tuple(texts)


def read_span_file(path: Path, rank: int) -> SpanRecords:
    """Read the records of ``rank``. A file with a header only gives no spans and no anchors.

    Raises InputError naming rank and file when it is missing, unreadable, or not what it should be.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"rank {rank}: {path} cannot be read ({error.strerror})") from None
    pid, opened = _read_header(content, path, rank)
    blocks, rest = divmod(len(content) - fmt.HEADER.size, fmt.BLOCK_BYTES)
    records = np.frombuffer(content, _RECORD_DTYPE, count=blocks, offset=fmt.HEADER.size)
    names, is_text, name_was_cut, bad_names = _read_names(records, content)
    kinds = records["flags"] & fmt.KIND_MASK
    sensible = ~is_text & (records["end"] >= records["start"]) & (records["start"] > 0)
    is_named = np.isin(records["name"], list(names))
    is_span = sensible & is_named & np.isin(kinds, list(_SPAN_KINDS))
    is_beacon = sensible & (kinds == fmt.KIND_BEACON)
    damaged = int((~(is_text | is_span | is_beacon)).sum()) + bad_names
    return SpanRecords(
        rank=rank,
        pid=pid,
        opened=opened,
        spans=check_spans(_spans(records[is_span], names)),
        anchors=_anchors(records[is_beacon]),
        torn=bool(rest) or name_was_cut,
        damaged=damaged,
    )


def _read_header(content: bytes, path: Path, rank: int) -> tuple[int, Moment]:
    if len(content) < fmt.HEADER.size:
        raise InputError(
            f"rank {rank}: {path} ends within its header ({len(content)} bytes). The rank was "
            "killed at its start or the disk was full; its own steps are lost."
        )
    magic, version, file_rank, pid, realtime_ns, monotonic_ns = fmt.HEADER.unpack_from(content)
    if magic != fmt.MAGIC:
        raise InputError(f"rank {rank}: {path} does not hold span records of hpcprof")
    if version != fmt.VERSION:
        raise InputError(
            f"rank {rank}: {path} has format {version}, this hpcprof reads {fmt.VERSION}. "
            "Run collect with the hpcprof version of the job."
        )
    if file_rank != rank:
        raise InputError(
            f"rank {rank}: {path} was written by rank {file_rank}. Was a run folder copied over "
            "another one?"
        )
    return pid, Moment(realtime_ns, monotonic_ns)


def _read_names(
    records: np.ndarray[Any, Any], content: bytes
) -> tuple[dict[int, str], np.ndarray[Any, Any], bool, int]:
    """Names by id; which blocks belong to names; whether the last was cut; how many were bad."""
    names: dict[int, str] = {}
    is_text = np.zeros(len(records), dtype=bool)
    bad = 0
    next_block = 0
    for block in np.flatnonzero((records["flags"] & fmt.KIND_MASK) == fmt.KIND_NAME).tolist():
        if block < next_block or not _is_name(records[block]):
            continue  # the text of a name may look like a record
        length = int(records["value"][block])
        next_block = block + 1 + fmt.text_block_count(length)
        if next_block > len(records):
            is_text[block:] = True
            return names, is_text, True, bad
        is_text[block:next_block] = True
        start = fmt.HEADER.size + (block + 1) * fmt.BLOCK_BYTES
        text = content[start : start + length].decode("utf-8", "replace")
        # an id declared twice with two texts: somebody else wrote into the file; the first holds
        bad += names.setdefault(int(records["name"][block]), text) != text
    return names, is_text, False, bad


def _is_name(record: Any) -> bool:
    zeros = not record["start"] and not record["end"] and not record["thread"]
    return zeros and record["step"] == fmt.NO_STEP and 0 <= record["value"] <= _LONGEST_NAME_BYTES


def _spans(records: np.ndarray[Any, Any], names: dict[int, str]) -> pd.DataFrame:
    name_codes, name_ids = pd.factorize(records["name"])
    texts = [names[int(name_id)] for name_id in name_ids]
    phases = [text if text in PHASES else OTHER for text in texts]
    thread_codes, threads = pd.factorize(records["thread"])
    kinds = records["flags"] & fmt.KIND_MASK
    phase_codes = np.where(kinds == fmt.KIND_PHASE, name_codes, -1)
    value = records["value"]
    of_training = np.isin(kinds, _OF_THE_TRAINING)
    no_step = (records["step"] == fmt.NO_STEP) | (kinds == fmt.KIND_BUSY)
    return spans_frame(
        {
            "start_ns": records["start"].astype(np.int64),
            "end_ns": records["end"].astype(np.int64),
            "kind": coded(kinds, [_SPAN_KINDS.get(k) for k in range(max(_SPAN_KINDS) + 1)]),
            "activity": coded(phase_codes, [PHASE_ACTIVITY.get(phase) for phase in phases]),
            "name": coded(name_codes, texts),
            "lane": coded(thread_codes, [f"thread {thread}" for thread in threads]),
            "replica": nullable_int(np.zeros(len(records)), ~of_training, "Int16"),
            "step": nullable_int(records["step"], no_step, "Int32"),
            "phase": coded(phase_codes, phases),
            "bytes": nullable_int(value, value <= 0, "Int64"),
            "op": coded(phase_codes, [phase if phase == ALLREDUCE else None for phase in phases]),
            "source": SOURCE,
        }
    )


def _anchors(records: np.ndarray[Any, Any]) -> pd.DataFrame:
    return anchors_frame(
        {
            "seq": records["step"].astype(np.int64),
            "before_ns": records["start"].astype(np.int64),
            "after_ns": records["end"].astype(np.int64),
            "realtime_ns": records["value"].astype(np.int64),
        }
    )
