"""Reads an Nsight Systems SQLite export into spans, times still those of the export.

Does not place the times on the node's clock (``nsys_clock``) and does not assign steps (``steps``).
The table of the environment is never read: it holds every variable of the training, secrets too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.readers import nsys_cuda, nsys_host, nsys_nvtx
from hpcprof.readers.launches import with_phases
from hpcprof.readers.nsys_database import NULL, Ints, NsysDatabase, open_database
from hpcprof.trace.check import check_spans
from hpcprof.trace.columns import COLLECTIVE
from hpcprof.trace.frame import concat_spans
from hpcprof.trace.model import Training

_GLOBAL_ID_OF = {
    nsys_nvtx.TABLE: "globalTid",
    nsys_cuda.RUNTIME_TABLE: "globalTid",
    nsys_cuda.KERNEL_TABLE: "globalPid",
    nsys_host.OS_TABLE: "globalTid",
    **dict.fromkeys(nsys_host.MPI_TABLES, "globalTid"),
}


@dataclass(frozen=True)
class NsysExport:
    """Content of an export for the application's process.

    ``own`` are the ranges of our NVTX domain, ``spans`` everything else; both sorted, with times in
    ns of the export. ``beacons`` as in ``nsys_nvtx``. ``utc_epoch_ns`` is the UTC time at which the
    export's clock was 0; None in exports of 2021 and older.
    """

    spans: pd.DataFrame
    own: pd.DataFrame
    beacons: pd.DataFrame
    utc_epoch_ns: int | None
    warnings: tuple[str, ...]


def read_export(
    path: Path, pid: int | None, visible_devices: str | None, training: Training | None = None
) -> NsysExport:
    """Read the rows of the application: of ``pid`` when it is in the export, else see below.

    ``visible_devices`` is the rank's CUDA_VISIBLE_DEVICES, used when the export does not say which
    physical GPU a device number means. ``training`` helps to tell the phases of operations. An
    export without any event gives no spans.
    Raises InputError when the file is not a complete export.
    """
    with open_database(path) as database:
        pids, warnings = _choose_processes(database, pid)
        nvtx = nsys_nvtx.read_nvtx(database, pids, training)
        devices = _DeviceNumbers(database, pids, visible_devices)
        has_horovod = any((table["kind"] == COLLECTIVE).any() for table in nvtx.others[:1])
        spans = [
            *nvtx.others,
            *nsys_cuda.cuda_spans(database, pids, devices),
            *nsys_host.mpi_spans(database, pids, is_transport=has_horovod),
            nsys_host.os_spans(database, pids),
        ]
        if nvtx.open_ranges:
            warnings.append(
                f"{nvtx.open_ranges} NVTX ranges were still open when the recording ended"
            )
        return NsysExport(
            spans=check_spans(with_phases(concat_spans(spans))),
            own=check_spans(nvtx.own),
            beacons=nvtx.beacons,
            utc_epoch_ns=database.single("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
            warnings=(*warnings, *devices.warnings),
        )


def _choose_processes(database: NsysDatabase, pid: int | None) -> tuple[Ints, list[str]]:
    """The application among the processes of the report, and a warning about the others.

    The process that wrote our spans; else those with our or Horovod's ranges; else those with GPU
    kernels; else the one with most rows. (A training starts helpers: ptxas, nvidia-smi, a shell.)
    """
    rows: Counter[int] = Counter()
    for table, column in _GLOBAL_ID_OF.items():
        rows.update(database.rows_by_process(table, column))
    kernels = database.rows_by_process(nsys_cuda.KERNEL_TABLE, "globalPid")
    # nsys keeps the lowest 24 bits of a process id
    known = [] if pid is None or (pid & 0xFFFFFF) not in rows else [pid & 0xFFFFFF]
    candidates = known or nsys_nvtx.annotated_processes(database).tolist() or sorted(kernels)
    chosen = candidates or [process for process, _ in rows.most_common(1)]
    others = {process: count for process, count in rows.items() if process not in chosen}
    warnings = []
    if others:
        total = sum(others.values())
        warnings.append(f"{total} rows of {len(others)} other processes were left out")
    return np.array(sorted(chosen), dtype=np.int64), warnings


class _DeviceNumbers:
    """Replica and physical GPU of the deviceId of CUDA rows.

    deviceId is the number under which the process saw the GPU: with one visible GPU per process it
    is 0 everywhere. A process on several devices trains one replica per device, in their order.
    """

    def __init__(self, database: NsysDatabase, pids: Ints, visible_devices: str | None) -> None:
        self._replicas = {
            device: replica
            for replica, device in enumerate(nsys_cuda.kernel_devices(database, pids).tolist())
        }
        self._physical = _physical_devices(database, pids, visible_devices)
        unmapped = sorted(set(self._replicas) - set(self._physical))
        self.warnings: tuple[str, ...] = ()
        if unmapped:
            numbers = ", ".join(str(device) for device in unmapped)
            self.warnings = (
                f"the report does not say which GPU device {numbers} is; the number is the one "
                "the process saw",
            )

    def __call__(self, device_ids: Ints) -> tuple[Ints, Ints]:
        unique, inverse = np.unique(device_ids, return_inverse=True)
        replicas = [self._replicas.get(d, 0 if len(self._replicas) < 2 else NULL) for d in unique]
        devices = [self._physical.get(d, d) for d in unique]
        inverse = inverse.reshape(-1)
        return (
            np.array(replicas, dtype=np.int64)[inverse],
            np.array(devices, dtype=np.int64)[inverse],
        )


def _physical_devices(
    database: NsysDatabase, pids: Ints, visible_devices: str | None
) -> dict[int, int]:
    """Physical GPU by the number the process saw; empty when nothing tells."""
    rows = database.ints("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    mine = np.isin(rows["pid"], pids) & (rows["gpuId"] != NULL)
    if mine.any():
        return dict(zip(rows["cudaId"][mine].tolist(), rows["gpuId"][mine].tolist(), strict=True))
    listed = _listed_devices(visible_devices)
    rows = database.ints("TARGET_INFO_GPU", ["id", "cuDevice"])
    known = (rows["id"] != NULL) & (rows["cuDevice"] != NULL)
    gpus = dict(zip(rows["cuDevice"][known].tolist(), rows["id"][known].tolist(), strict=True))
    # cuDevice numbers what nsys sees, which is before CUDA_VISIBLE_DEVICES hides any
    return {seen: gpus.get(cuda, cuda) for seen, cuda in listed.items()} or gpus


def _listed_devices(visible_devices: str | None) -> dict[int, int]:
    """CUDA_VISIBLE_DEVICES as a map, when it lists numbers (it may list UUIDs)."""
    entries = [entry.strip() for entry in (visible_devices or "").split(",")]
    if not all(entry.isdigit() for entry in entries):
        return {}
    return {seen: int(entry) for seen, entry in enumerate(entries)}
