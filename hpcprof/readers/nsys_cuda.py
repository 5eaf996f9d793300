"""CUDA rows of an nsys export: kernels, copies, memsets, synchronisation, API calls.

Times stay those of the export. Does not choose processes and does not map devices: it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.readers.collective_names import collective_op, is_nccl_kernel
from hpcprof.readers.nsys_database import NULL, Ints, NsysDatabase, process_of, thread_of
from hpcprof.trace.columns import (
    COLLECTIVE_ACTIVITY,
    COMPUTE,
    COPY,
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    SYNC,
)
from hpcprof.trace.frame import coded, nullable_int, spans_frame

SOURCE = "nsys"
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY_TABLE = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET_TABLE = "CUPTI_ACTIVITY_KIND_MEMSET"
_SYNC_TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RUNTIME_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
# copyKind, the same numbers in every version (ENUM_CUDA_MEMCPY_OPER)
_COPY_NAMES = {1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP"}
_DEVICE_COLUMNS = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")

Flags = np.ndarray[Any, np.dtype[np.bool_]]
# tells replica and physical device of each deviceId; both are small integers
DeviceMap = Callable[[Ints], tuple[Ints, Ints]]


def kernel_devices(database: NsysDatabase, pids: Ints) -> Ints:
    """The deviceIds on which the processes ran kernels, ascending."""
    rows = database.ints(KERNEL_TABLE, ["globalPid", "deviceId"])
    mine = np.isin(process_of(rows["globalPid"]), pids) & (rows["deviceId"] != NULL)
    return np.unique(rows["deviceId"][mine])


def cuda_spans(database: NsysDatabase, pids: Ints, devices: DeviceMap) -> list[pd.DataFrame]:
    """Spans tables of all CUDA rows of the processes; a table per kind, possibly without rows."""
    return [
        _kernels(database, pids, devices),
        _copies(database, pids, devices),
        _device_rows(database, _MEMSET_TABLE, pids, devices, MEMSET, "memset", COPY),
        _device_rows(database, _SYNC_TABLE, pids, devices, SYNC, "synchronize", None),
        _runtime(database, pids),
    ]


def _kernels(database: NsysDatabase, pids: Ints, devices: DeviceMap) -> pd.DataFrame:
    rows = database.ints(KERNEL_TABLE, _DEVICE_COLUMNS)
    codes, texts = database.labels(KERNEL_TABLE, "shortName", "demangledName")
    names = [text or "kernel without a name" for text in texts]
    is_nccl = [is_nccl_kernel(name) for name in names]
    keep = _kept(rows, pids)
    codes = codes[keep]
    return spans_frame(
        {
            **_on_device(rows, keep, devices),
            "kind": KERNEL,
            "activity": coded(
                codes, [COLLECTIVE_ACTIVITY if nccl else COMPUTE for nccl in is_nccl]
            ),
            "name": coded(codes, names),
            "op": coded(
                codes,
                [
                    collective_op(n) if nccl else None
                    for n, nccl in zip(names, is_nccl, strict=True)
                ],
            ),
            "source": SOURCE,
        }
    )


def _copies(database: NsysDatabase, pids: Ints, devices: DeviceMap) -> pd.DataFrame:
    rows = database.ints(_COPY_TABLE, (*_DEVICE_COLUMNS, "copyKind", "bytes"))
    keep = _kept(rows, pids)
    codes, kinds = pd.factorize(rows["copyKind"][keep])
    return spans_frame(
        {
            **_on_device(rows, keep, devices),
            "kind": MEMCPY,
            "activity": COPY,
            "name": coded(codes, [_COPY_NAMES.get(int(kind), "memcpy") for kind in kinds]),
            "bytes": optional(rows["bytes"][keep], "Int64"),
            "source": SOURCE,
        }
    )


def _device_rows(
    database: NsysDatabase,
    table: str,
    pids: Ints,
    devices: DeviceMap,
    kind: str,
    name: str,
    activity: str | None,
) -> pd.DataFrame:
    rows = database.ints(table, (*_DEVICE_COLUMNS, "bytes"))
    keep = _kept(rows, pids)
    return spans_frame(
        {
            **_on_device(rows, keep, devices),
            "kind": kind,
            "activity": activity,
            "name": name,
            "bytes": optional(rows["bytes"][keep], "Int64"),
            "source": SOURCE,
        }
    )


def _runtime(database: NsysDatabase, pids: Ints) -> pd.DataFrame:
    rows = database.ints(RUNTIME_TABLE, ["start", "end", "globalTid", "correlationId"])
    codes, texts = database.labels(RUNTIME_TABLE, "nameId")
    keep = is_span(rows) & np.isin(process_of(rows["globalTid"]), pids)
    return spans_frame(
        {
            "start_ns": rows["start"][keep],
            "end_ns": rows["end"][keep],
            "kind": RUNTIME,
            "name": coded(codes[keep], [text or "CUDA call without a name" for text in texts]),
            "lane": thread_lane(rows["globalTid"][keep]),
            "correlation": optional(rows["correlationId"][keep], "Int64"),
            "source": SOURCE,
        }
    )


def is_span(rows: dict[str, Ints]) -> Flags:
    """Rows with a start and an end in this order; an open row (end is null) is none."""
    start, end = rows["start"], rows["end"]
    spans: Flags = (start != NULL) & (end != NULL) & (end >= start)
    return spans


def optional(values: Ints, dtype: str) -> Any:
    """Integers with NULL as null."""
    return nullable_int(values, values == NULL, dtype)


def thread_lane(global_tid: Ints) -> Any:
    """The lane of host rows."""
    codes, threads = pd.factorize(thread_of(global_tid))
    return coded(codes, [f"thread {thread}" for thread in threads])


def _kept(rows: dict[str, Ints], pids: Ints) -> Flags:
    kept: Flags = is_span(rows) & np.isin(process_of(rows["globalPid"]), pids)
    return kept


def _on_device(rows: dict[str, Ints], keep: Any, devices: DeviceMap) -> dict[str, Any]:
    replica, device = devices(rows["deviceId"][keep])
    codes, streams = pd.factorize(rows["streamId"][keep])
    return {
        "start_ns": rows["start"][keep],
        "end_ns": rows["end"][keep],
        "lane": coded(codes, [None if s == NULL else f"stream {s}" for s in streams]),
        "replica": optional(replica, "Int16"),
        "device": optional(device, "Int16"),
        "correlation": optional(rows["correlationId"][keep], "Int64"),
    }
