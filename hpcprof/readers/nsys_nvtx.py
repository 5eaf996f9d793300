"""NVTX rows of an nsys export: our own ranges and beacons, and those of all others.

What becomes of the ranges is in ``nvtx_spans``. Times stay those of the export. Domains are known
by number within a process; row type 75 names them. Rows of other types than those below are
metadata, some with absurd start times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.artifacts import span_format
from hpcprof.artifacts.nvtx_format import HOROVOD_DOMAIN, TENSORFLOW_DOMAIN
from hpcprof.readers.nsys_cuda import SOURCE, is_span, optional, thread_lane
from hpcprof.readers.nsys_database import NULL, Ints, NsysDatabase, process_of
from hpcprof.readers.nsys_host import mpi_columns
from hpcprof.readers.nvtx_spans import Ranges, horovod_spans, host_spans, op_spans, own_spans
from hpcprof.trace.frame import spans_frame
from hpcprof.trace.model import Training

TABLE = "NVTX_EVENTS"
_MPI_DOMAIN = "MPI"  # how old versions record MPI calls
_MARK, _PUSH_POP, _START_END, _DOMAIN_CREATE = 34, 59, 60, 75


@dataclass(frozen=True)
class NvtxRows:
    """What the NVTX table holds of some processes.

    ``own`` are the ranges of our domain in the form the span reader gives them; ``others`` all
    other ranges. ``beacons`` has one row per mark: ``time_ns`` of the export, ``seq``,
    ``monotonic_ns``, ``realtime_ns`` (NULL on the second mark of a beacon). ``open_ranges`` were
    never closed: the recording or the program ended within them.
    """

    own: pd.DataFrame
    others: list[pd.DataFrame]
    beacons: pd.DataFrame
    open_ranges: int


class _Rows:
    """The rows of the NVTX table with names and domains, restricted by masks."""

    def __init__(self, database: NsysDatabase) -> None:
        wanted = ["start", "end", "eventType", "globalTid", "domainId", "int64Value", "uint64Value"]
        self.ints = database.ints(TABLE, wanted)
        codes, texts = database.labels(TABLE, "text", "textId")
        self.texts = [*(text or "" for text in texts), ""]
        self.codes = np.where(codes < 0, len(texts), codes)
        self.pids = process_of(self.ints["globalTid"])
        self.type = self.ints["eventType"]
        self.domains = self._domain_names()

    def _domain_names(self) -> np.ndarray[Any, Any]:
        """Domain name of each row; "" is the default domain or one whose creation was not seen."""
        numbers = np.where(self.ints["domainId"] == NULL, 0, self.ints["domainId"])
        keys = (self.pids << 32) | (numbers & 0xFFFFFFFF)
        created = np.flatnonzero(self.type == _DOMAIN_CREATE)
        names = {int(keys[row]): self.texts[self.codes[row]] for row in created}
        unique, inverse = np.unique(keys, return_inverse=True)
        texts = np.array([names.get(int(key), "") for key in unique], dtype=object)
        of_row: np.ndarray[Any, Any] = texts[inverse.reshape(-1)]
        return of_row

    def ranges(self, mask: Any) -> Ranges:
        """The rows in ``mask`` with their texts."""
        columns = {
            "start_ns": self.ints["start"][mask],
            "end_ns": self.ints["end"][mask],
            "lane": thread_lane(self.ints["globalTid"][mask]),
            "source": SOURCE,
        }
        return Ranges(columns, self.codes[mask], self.texts)

    def payloads(self, mask: Any) -> Any:
        """Payloads of the rows in ``mask``, null without one."""
        signed, unsigned = self.ints["int64Value"][mask], self.ints["uint64Value"][mask]
        return optional(np.where(signed == NULL, unsigned, signed), "Int64")


def annotated_processes(database: NsysDatabase) -> Ints:
    """Processes that emitted anything in our domain, Horovod's or TensorFlow's, ascending."""
    rows = _Rows(database)
    of_training = [span_format.NVTX_DOMAIN, HOROVOD_DOMAIN, TENSORFLOW_DOMAIN]
    return np.unique(rows.pids[np.isin(rows.domains, of_training)])


def read_nvtx(database: NsysDatabase, pids: Ints, training: Training | None) -> NvtxRows:
    """All NVTX rows of the processes. An export without the table gives no rows."""
    rows = _Rows(database)
    mine = np.isin(rows.pids, pids)
    is_range = mine & np.isin(rows.type, [_PUSH_POP, _START_END])
    closed = is_range & is_span(rows.ints)
    is_own = rows.domains == span_format.NVTX_DOMAIN
    is_horovod = closed & (rows.domains == HOROVOD_DOMAIN)
    is_op = closed & (rows.domains == TENSORFLOW_DOMAIN)
    is_mpi = closed & (rows.domains == _MPI_DOMAIN)
    rest = closed & ~is_own & ~is_horovod & ~is_op & ~is_mpi
    return NvtxRows(
        own=own_spans(rows.ranges(closed & is_own)),
        others=[
            horovod_spans(rows.ranges(is_horovod), rows.payloads(is_horovod)),
            _mpi(rows, is_mpi, is_transport=bool(is_horovod.any())),
            op_spans(rows.ranges(is_op), training),
            host_spans(rows.ranges(rest)),
        ],
        beacons=_beacons(rows, mine & is_own & (rows.type == _MARK)),
        open_ranges=int((is_range & (rows.ints["end"] == NULL)).sum()),
    )


def _mpi(rows: _Rows, mask: Any, *, is_transport: bool) -> pd.DataFrame:
    columns, codes, texts = rows.ranges(mask)
    return spans_frame({**columns, **mpi_columns(codes, texts, is_transport=is_transport)})


def _pattern(form: str) -> re.Pattern[str]:
    """The regular expression of a message form of span_format."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[0-9]+)", re.escape(form)))


_BEACON_RE = _pattern(span_format.NVTX_BEACON)
_BEACON_AFTER_RE = _pattern(span_format.NVTX_BEACON_AFTER)


def _beacons(rows: _Rows, mask: Any) -> pd.DataFrame:
    found: list[tuple[int, int, int, int]] = []
    for time_ns, code in zip(rows.ints["start"][mask], rows.codes[mask], strict=True):
        text = rows.texts[code]
        match = _BEACON_RE.fullmatch(text) or _BEACON_AFTER_RE.fullmatch(text)
        if match:
            real = match.groupdict().get("real")
            numbers = (int(match["seq"]), int(match["mono"]), NULL if real is None else int(real))
            found.append((int(time_ns), *numbers))
    columns = ["time_ns", "seq", "monotonic_ns", "realtime_ns"]
    table: pd.DataFrame = pd.DataFrame(sorted(found), columns=columns).astype("int64")
    return table
