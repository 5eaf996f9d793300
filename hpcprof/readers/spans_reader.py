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

import numpy as np
import pandas as pd

from hpcprof.artifacts import span_format as fmt
from hpcprof.readers.record_blocks import (
    BlockFormat,
    Records,
    is_sensible,
    read_blocks,
    what_was_lost,
)
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
_FORM = BlockFormat(fmt.MAGIC, fmt.VERSION, "span records", "its own steps")
_SPAN_KINDS = {
    fmt.KIND_HOST: HOST,
    fmt.KIND_STEP: STEP_KIND,
    fmt.KIND_PHASE: PHASE_KIND,
    fmt.KIND_BUSY: BUSY,
}
_OF_THE_TRAINING = (fmt.KIND_STEP, fmt.KIND_PHASE)


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
        return what_was_lost(torn=self.torn, damaged=self.damaged)


def read_span_file(path: Path, rank: int) -> SpanRecords:
    """Read the records of ``rank``. A file with a header only gives no spans and no anchors.

    Raises InputError naming rank and file when it is missing, unreadable, or not what it should be.
    """
    blocks = read_blocks(path, rank, _FORM)
    records = blocks.records
    kinds = records["flags"] & fmt.KIND_MASK
    sensible = is_sensible(records)
    is_named = np.isin(records["name"], list(blocks.names))
    is_span = sensible & is_named & np.isin(kinds, list(_SPAN_KINDS))
    is_beacon = sensible & (kinds == fmt.KIND_BEACON)
    return SpanRecords(
        rank=rank,
        pid=blocks.pid,
        opened=blocks.opened,
        spans=check_spans(_spans(records[is_span], blocks.names)),
        anchors=_anchors(records[is_beacon]),
        torn=blocks.torn,
        damaged=int((~(is_span | is_beacon)).sum()) + blocks.bad_names,
    )


def _spans(records: Records, names: dict[int, str]) -> pd.DataFrame:
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


def _anchors(records: Records) -> pd.DataFrame:
    return anchors_frame(
        {
            "seq": records["step"].astype(np.int64),
            "before_ns": records["start"].astype(np.int64),
            "after_ns": records["end"].astype(np.int64),
            "realtime_ns": records["value"].astype(np.int64),
        }
    )
