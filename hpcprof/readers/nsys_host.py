"""Host rows of an nsys export that are not NVTX: MPI calls and operating system calls.

Times stay those of the export.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.readers.collective_names import collective_op
from hpcprof.readers.nsys_cuda import SOURCE, is_span, optional, thread_lane
from hpcprof.readers.nsys_database import NULL, Ints, NsysDatabase, process_of
from hpcprof.trace.columns import COLLECTIVE, COLLECTIVE_ACTIVITY, HOST, IO, RUNTIME
from hpcprof.trace.frame import coded, nullable_int, spans_frame

MPI_TABLES = (
    *("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS"),
    *("MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"),
)
OS_TABLE = "OSRT_API"
# calls that move data or touch a file system: (p)read(v)(64), fread, open(at)(64), fsync, fstat …
_IO_RE = re.compile(
    r"\A(?:p?(?:read|write)v?2?|f(?:read|write|open|close|sync|datasync|stat|statat)"
    r"|open(?:at)?|creat|close|readahead|sendfile|copy_file_range|l?stat|statx)(?:64)?\Z"
)


def mpi_spans(database: NsysDatabase, pids: Ints, *, is_transport: bool) -> list[pd.DataFrame]:
    """Spans of MPI calls, one table per table of the export.

    Collectives are ``kind`` collective of replica 0. With ``is_transport`` all are ``host``: under
    Horovod, MPI carries the collectives that Horovod itself reports, and its negotiation every
    millisecond; counting both would count twice.
    """
    return [_mpi_table(database, table, pids, is_transport) for table in MPI_TABLES]


def _mpi_table(
    database: NsysDatabase,
    table: str,
    pids: Ints,
    is_transport: bool,  # noqa: FBT001
) -> pd.DataFrame:
    rows = database.ints(table, ["start", "end", "globalTid", "size", "commHandle"])
    codes, texts = database.labels(table, "textId")
    keep = is_span(rows) & np.isin(process_of(rows["globalTid"]), pids)
    comm_codes, comms = pd.factorize(rows["commHandle"][keep])
    return spans_frame(
        {
            "start_ns": rows["start"][keep],
            "end_ns": rows["end"][keep],
            "lane": thread_lane(rows["globalTid"][keep]),
            "bytes": optional(rows["size"][keep], "Int64"),
            "comm": coded(comm_codes, [None if c == NULL else f"mpi {c:#x}" for c in comms]),
            "source": SOURCE,
            **mpi_columns(codes[keep], texts, is_transport=is_transport),
        }
    )


def mpi_columns(codes: Ints, texts: Sequence[str | None], *, is_transport: bool) -> dict[str, Any]:
    """Kind, activity, name, op and replica of MPI calls by their names."""
    names = [text or "MPI call without a name" for text in texts]
    ops = [None if is_transport else collective_op(name) for name in names]
    has_op = np.array([op is not None for op in ops] + [False])[codes]
    return {
        "kind": coded(codes, [HOST if op is None else COLLECTIVE for op in ops]),
        "activity": coded(codes, [None if op is None else COLLECTIVE_ACTIVITY for op in ops]),
        "name": coded(codes, names),
        "op": coded(codes, ops),
        "replica": nullable_int(np.zeros(len(codes)), ~has_op, "Int16"),
    }


def os_spans(database: NsysDatabase, pids: Ints) -> pd.DataFrame:
    """Operating system calls: ``io`` for those that touch files, ``runtime`` for the rest.

    The export's return value is not the number of bytes (it is 0), so ``bytes`` stays null.
    """
    rows = database.ints(OS_TABLE, ["start", "end", "globalTid", "nestingLevel"])
    codes, texts = database.labels(OS_TABLE, "nameId")
    names = [text or "call without a name" for text in texts]
    # nsys writes its own remarks into the table ("OS runtime libraries profiling started", also
    # "[Unknown]"): they have no nesting level, a column that old versions do not have
    is_call = np.array([" " not in name for name in names] + [False])[codes]
    if "nestingLevel" in database.columns(OS_TABLE):
        is_call = rows["nestingLevel"] != NULL
    keep = is_span(rows) & is_call & np.isin(process_of(rows["globalTid"]), pids)
    codes = codes[keep]
    return spans_frame(
        {
            "start_ns": rows["start"][keep],
            "end_ns": rows["end"][keep],
            "kind": coded(codes, [IO if _IO_RE.match(name) else RUNTIME for name in names]),
            "name": coded(codes, names),
            "lane": thread_lane(rows["globalTid"][keep]),
            "source": SOURCE,
        }
    )
