"""Reads ``nvtx.bin``, what our own recorder saw of NVTX. Times are the node's CLOCK_MONOTONIC.

What becomes of the ranges is in ``nvtx_spans``. Does not judge whether the rank is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.artifacts import nvtx_format, span_format
from hpcprof.readers.nvtx_spans import Ranges, horovod_spans, host_spans, op_spans, own_spans
from hpcprof.readers.record_blocks import (
    BlockFormat,
    Blocks,
    Records,
    is_sensible,
    read_blocks,
    what_was_lost,
)
from hpcprof.trace.check import check_spans
from hpcprof.trace.frame import coded, concat_spans, nullable_int
from hpcprof.trace.model import Training

SOURCE = "recorder"
_FORM = BlockFormat(nvtx_format.MAGIC, nvtx_format.VERSION, "NVTX ranges", "its NVTX ranges")
_RANGES = (nvtx_format.PUSH_POP, nvtx_format.START_END)


@dataclass(frozen=True)
class NvtxRecord:
    """Content of one ``nvtx.bin``.

    ``own`` are the ranges of our domain in the form the span reader gives them, ``spans`` all
    others, without steps. ``torn`` and ``damaged`` as in the span reader.
    """

    pid: int
    spans: pd.DataFrame
    own: pd.DataFrame
    torn: bool
    damaged: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was lost, in words; empty when nothing was."""
        return what_was_lost(torn=self.torn, damaged=self.damaged)


def read_nvtx_record(path: Path, rank: int, training: Training | None) -> NvtxRecord:
    """Read the ranges of ``rank``; ``training`` helps to tell the phases of operations.

    A file with a header only gives no spans. Raises InputError naming rank and file when it is
    missing, unreadable, or not what it should be.
    """
    blocks = read_blocks(path, rank, _FORM)
    records = blocks.records
    kinds = records["flags"] & span_format.KIND_MASK
    known = [*blocks.names]
    has_domain = np.isin(records["step"], [*known, nvtx_format.NO_DOMAIN])
    is_named = np.isin(records["name"], known) & has_domain & is_sensible(records)
    is_range = is_named & np.isin(kinds, _RANGES)
    is_mark = is_named & (kinds == nvtx_format.MARK)
    domains = _Domains(blocks, records[is_range])
    return NvtxRecord(
        pid=blocks.pid,
        spans=check_spans(domains.others(training)),
        own=check_spans(own_spans(domains.ranges(domains.of(span_format.NVTX_DOMAIN)))),
        torn=blocks.torn,
        damaged=int((~(is_range | is_mark)).sum()) + blocks.bad_names,
    )


class _Domains:
    """The ranges of a file, to be taken domain by domain."""

    def __init__(self, blocks: Blocks, records: Records) -> None:
        self._records = records
        self._names = blocks.names
        self._codes, ids = pd.factorize(records["name"])
        self._texts = [blocks.names[int(name_id)] for name_id in ids]

    def of(self, name: str) -> Any:
        """Which ranges are of this domain. The default domain has no name."""
        ids = [name_id for name_id, text in self._names.items() if text == name]
        return np.isin(self._records["step"], ids)

    def ranges(self, mask: Any) -> Ranges:
        """Those ranges with their texts."""
        rows = self._records[mask]
        thread_codes, threads = pd.factorize(rows["thread"])
        columns = {
            "start_ns": rows["start"].astype(np.int64),
            "end_ns": rows["end"].astype(np.int64),
            "lane": coded(thread_codes, [f"thread {thread}" for thread in threads]),
            "source": SOURCE,
        }
        return Ranges(columns, self._codes[mask], self._texts)

    def others(self, training: Training | None) -> pd.DataFrame:
        """Everything but our own domain, as spans."""
        is_own = self.of(span_format.NVTX_DOMAIN)
        is_op = self.of(nvtx_format.TENSORFLOW_DOMAIN)
        is_horovod = self.of(nvtx_format.HOROVOD_DOMAIN)
        values = self._records["value"][is_horovod]
        return concat_spans(
            [
                horovod_spans(self.ranges(is_horovod), nullable_int(values, values <= 0, "Int64")),
                op_spans(self.ranges(is_op), training),
                host_spans(self.ranges(~(is_own | is_op | is_horovod))),
            ]
        )
