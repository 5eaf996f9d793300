"""Writes small SQLite files in the form of nsys exports. For tests of the readers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from hpcprof.artifacts import span_format as fmt

PID = 4711
_COLUMNS = {
    "NVTX_EVENTS": "start,end,eventType,globalTid,endGlobalTid,text,textId,domainId,int64Value",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start,end,globalPid,deviceId,streamId,correlationId,shortName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start,end,globalPid,deviceId,streamId,correlationId,copyKind,"
    "bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start,end,globalTid,correlationId,nameId",
    "MPI_COLLECTIVES_EVENTS": "start,end,globalTid,textId,commHandle,size",
    "OSRT_API": "start,end,globalTid,nameId,returnValue",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs,utcTime",
    "TARGET_INFO_CUDA_DEVICE": "gpuId,cudaId,pid",
    "TARGET_INFO_GPU": "id,cuDevice",
    "TARGET_INFO_SYSTEM_ENV": "globalVid,devStateName,name,nameEnum,value",
    "StringIds": "id,value",
}


def gtid(pid: int = PID, tid: int = 77) -> int:
    """globalTid or globalPid as nsys packs them: host bits, process, thread."""
    return (1 << 48) | (pid << 24) | tid


class Export:
    """An export in the making; ``save`` writes it. Tables without rows are absent, as in nsys."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._strings: dict[str, int] = {}

    def text(self, value: str) -> int:
        """Id of a string in StringIds."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.row("StringIds", self._strings[value], value)
        return self._strings[value]

    def row(self, table: str, *values: Any) -> Export:
        self._rows.setdefault(table, []).append(values)
        return self

    def domain(self, number: int, name: str, pid: int = PID) -> Export:
        return self.row(
            "NVTX_EVENTS", -357 * 10**9, None, 75, gtid(pid), None, name, None, number, None
        )

    def range(
        self,
        start: int,
        end: int | None,
        text: str,
        domain: int | None,
        *,
        kind: int = 59,
        payload: int | None = None,
        pid: int = PID,
        by_id: bool = True,
    ) -> Export:
        literal, text_id = (None, self.text(text)) if by_id else (text, None)
        ends_on = gtid(pid, 99) if kind == 60 else None
        values = (start, end, kind, gtid(pid), ends_on, literal, text_id, domain, payload)
        return self.row("NVTX_EVENTS", *values)

    def beacon(self, seq: int, offset: int, at: int, width: int, domain: int = 1) -> Export:
        """Marks of a beacon; ``offset`` is what must be added to export times to get monotonic.

        The clock is read ``width`` // 2 before the mark and again as much after it.
        """
        before, after = at + offset - width // 2, at + offset + width // 2
        first = fmt.NVTX_BEACON.format(seq=seq, mono=before, real=before + 10**18)
        second = fmt.NVTX_BEACON_AFTER.format(seq=seq, mono=after)
        self.range(at, None, first, domain, kind=34)
        return self.range(at + width // 2 + 40, None, second, domain, kind=34)

    def kernel(self, start: int, end: int, name: str, device: int = 0, pid: int = PID) -> Export:
        values = (start, end, gtid(pid, 0), device, 7, 500, self.text(name))
        return self.row("CUPTI_ACTIVITY_KIND_KERNEL", *values)

    def save(self, path: Path, rename: dict[str, str] | None = None) -> Path:
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        for table, rows in self._rows.items():
            columns = _COLUMNS[table]
            name = (rename or {}).get(table, table)
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ",".join("?" * len(columns.split(",")))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        connection.commit()
        connection.close()
        return path
