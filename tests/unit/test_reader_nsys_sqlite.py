"""nsys SQLite exports: real files against SQL, and the shapes that broke other readers."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pandas as pd
import pytest

from hpcprof.errors import InputError
from hpcprof.readers.collective_names import collective_op
from hpcprof.readers.nsys_sqlite import NsysExport, read_export
from hpcprof.trace import check_spans
from tests.unit.nsys_export import PID, Export, gtid

pytestmark = pytest.mark.unit

DATA = Path(
    os.environ.get("HPCPROF_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)
REAL_FILES = [
    "cestwc_2025.5.1_gpu_id_swap",
    "nsys-ai_2026.1.1_two_kernels_wsl",
    "nsys-ai_2026.2.1_two_ranks_fsdp",
    "nsys-ai_2026.2.1_two_ranks_sendrecv",
    "pipit_2022.2.1_saxpy_mpi_rank0",
    "pipit_2024.5.1_cloverleaf",
]
# kind of our spans: the SQL that counts them
COUNTS = {
    "kernel": "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_MEMSET",
    "sync": "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "host": "SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL",
}


def real(name: str) -> Path:
    path = DATA / "nsys" / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"no real data: {path} (set HPCPROF_TEST_DATA)")
    return path


def count(path: Path, sql: str) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(sql).fetchone()[0]
    except sqlite3.OperationalError:
        return 0  # no such table: nsys leaves out what saw no event
    finally:
        connection.close()


def read(export: Export, tmp_path: Path, pid: int | None = PID, **options) -> NsysExport:
    path = export.save(tmp_path / "rank.sqlite", **options)
    return read_export(path, pid, None)


@pytest.mark.parametrize("name", REAL_FILES)
def test_real_exports_give_every_row_that_sql_counts(name: str) -> None:
    path = real(name)
    got = check_spans(read_export(path, None, None).spans)
    for kind, sql in COUNTS.items():
        assert (got["kind"] == kind).sum() == count(path, sql), kind
    os_calls = count(path, "SELECT COUNT(*) FROM OSRT_API WHERE nestingLevel IS NOT NULL")
    cuda_calls = count(path, "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    assert got["kind"].isin(["io", "runtime"]).sum() == os_calls + cuda_calls


@pytest.mark.parametrize("name", REAL_FILES)
def test_real_kernels_keep_start_end_and_correlation(name: str) -> None:
    path = real(name)
    got = read_export(path, None, None).spans
    kernels = got[got["kind"] == "kernel"]
    sql = "SELECT SUM({0}) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert kernels["start_ns"].sum() == count(path, sql.format("start"))
    assert kernels["end_ns"].sum() == count(path, sql.format("end"))
    assert kernels["correlation"].sum() == count(path, sql.format("correlationId"))
    copied = got.loc[got["kind"] == "memcpy", "bytes"].sum()
    assert copied == count(path, "SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY")


def test_real_device_numbers_are_physical() -> None:
    swapped = read_export(real("cestwc_2025.5.1_gpu_id_swap"), None, None).spans
    assert set(swapped["device"].dropna()) == {1}  # the process saw it as 0
    cloverleaf = read_export(real("pipit_2024.5.1_cloverleaf"), None, None).spans
    assert set(cloverleaf["device"].dropna()) == {3}


def test_real_report_of_two_ranks_gives_the_rank_asked_for() -> None:
    path = real("nsys-ai_2026.2.1_two_ranks_sendrecv")
    got = read_export(path, 144, None)
    kernels = got.spans[got.spans["kind"] == "kernel"]
    sql = (
        "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE ((globalPid >> 24) & 16777215) = 144"
    )
    assert len(kernels) == count(path, sql)
    assert set(kernels["replica"]) == {0}
    nccl = kernels[kernels["activity"] == "collective"]
    assert (len(nccl), set(nccl["op"]), set(nccl["name"])) == (
        33,
        {"sendrecv"},
        {"ncclDevKernel_SendRecv"},
    )
    assert any("other processes were left out" in text for text in got.warnings)


def test_horovod_ranges_are_collectives_with_their_bytes(tmp_path: Path) -> None:
    export = Export().domain(1, "hpcprof").domain(2, "HorovodOps")
    export.range(200, 300, "HorovodAllreduce", 2, kind=60, payload=4096)
    export.range(100, 400, "HorovodBroadcast", 2, kind=60)
    got = read(export, tmp_path).spans
    assert got[["start_ns", "end_ns", "kind", "activity", "op", "replica"]].values.tolist() == [
        [100, 400, "collective", "collective", "broadcast", 0],
        [200, 300, "collective", "collective", "allreduce", 0],
    ]
    assert got["bytes"].tolist() == [pd.NA, 4096]


def test_our_own_ranges_are_kept_apart(tmp_path: Path) -> None:
    export = Export().domain(1, "hpcprof")
    export.range(10, 90, "step 12", 1).range(20, 30, "phase forward", 1)
    export.range(40, 50, "phase allreduce", 1).range(60, 70, "save", 1, by_id=False)
    export.range(80, 85, "phase augment", 1)
    got = read(export, tmp_path)
    assert got.spans.empty
    shown = ["kind", "name", "step", "phase", "activity", "op", "replica"]
    assert got.own[shown].astype(object).where(got.own[shown].notna(), None).values.tolist() == [
        ["step", "step", 12, None, None, None, 0],
        ["phase", "forward", None, "forward", "compute", None, 0],
        ["phase", "allreduce", None, "allreduce", "collective", "allreduce", 0],
        ["host", "save", None, None, None, None, None],
        ["phase", "augment", None, "other", None, None, 0],
    ]


def test_a_domain_number_means_another_domain_in_another_process(tmp_path: Path) -> None:
    export = Export().domain(1, "HorovodOps").domain(1, "other", pid=5)
    export.range(1, 2, "HorovodAllreduce", 1).range(3, 4, "HorovodAllreduce", 1, pid=5)
    export.range(5, 6, "HorovodAllreduce", None)
    assert read(export, tmp_path).spans["kind"].tolist() == ["collective", "host"]
    assert read(export, tmp_path, pid=5).spans["kind"].tolist() == ["host"]


@pytest.mark.parametrize("suffix", ["_V2", "_V3"])
def test_tables_are_found_under_versioned_names(tmp_path: Path, suffix: str) -> None:
    export = Export().domain(1, "HorovodOps").range(1, 2, "HorovodAllreduce", 1)
    export.kernel(5, 9, "gemm")
    tables = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL")
    got = read(export, tmp_path, rename={table: f"{table}{suffix}" for table in tables})
    assert got.spans["kind"].tolist() == ["collective", "kernel"]


def test_rows_that_are_no_spans_are_left_out_and_open_ones_counted(tmp_path: Path) -> None:
    export = Export().domain(1, "hpcprof")
    export.range(10, None, "step 3", 1).range(20, None, "still open", None)
    export.range(30, 25, "ends before it starts", None).range(-5, -5, "x", None, kind=39)
    export.range(40, 50, "fine", None)
    got = read(export, tmp_path)
    assert got.spans["name"].tolist() == ["fine"]
    assert got.own.empty
    assert got.warnings == ("2 NVTX ranges were still open when the recording ended",)


def test_nccl_kernels_are_collectives_and_the_rest_computes(tmp_path: Path) -> None:
    export = Export().kernel(1, 2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL").kernel(3, 4, "gemm")
    export.kernel(5, 6, "ncclDevKernel_Generic")
    got = read(export, tmp_path).spans
    assert got["activity"].tolist() == ["collective", "compute", "collective"]
    assert got["op"].tolist()[0] == "allreduce"
    assert got["op"].isna().tolist() == [False, True, True]
    assert got["lane"].tolist() == ["stream 7"] * 3


def test_several_devices_of_a_process_are_replicas_in_their_order(tmp_path: Path) -> None:
    export = Export().kernel(1, 2, "a", device=2).kernel(3, 4, "a", device=0)
    export.row("TARGET_INFO_CUDA_DEVICE", 5, 2, PID).row("TARGET_INFO_CUDA_DEVICE", 3, 0, PID)
    got = read(export, tmp_path).spans
    assert got[["replica", "device"]].values.tolist() == [[1, 5], [0, 3]]


def test_one_visible_device_is_mapped_through_the_environment(tmp_path: Path) -> None:
    export = Export().kernel(1, 2, "a", device=0)
    export.row("TARGET_INFO_GPU", 7, 2).row("TARGET_INFO_GPU", 6, 0)
    path = export.save(tmp_path / "x.sqlite")
    assert read_export(path, PID, "2").spans["device"].tolist() == [7]
    assert read_export(path, PID, None).spans["device"].tolist() == [6]
    bare = Export().kernel(1, 2, "a", device=0).save(tmp_path / "y.sqlite")
    assert read_export(bare, PID, "GPU-uuid").spans["device"].tolist() == [0]
    assert "does not say which GPU device 0 is" in read_export(bare, PID, None).warnings[0]


def test_mpi_calls_are_collectives_unless_horovod_reports_them(tmp_path: Path) -> None:
    def export() -> Export:
        made = Export()
        for start, name in ((1, "MPI_Allreduce"), (3, "MPI_Comm_rank")):
            values = (start, start + 1, gtid(), made.text(name), 0x44000000, 64)
            made.row("MPI_COLLECTIVES_EVENTS", *values)
        return made

    alone = read(export(), tmp_path).spans
    assert alone["kind"].tolist() == ["collective", "host"]
    assert (alone["op"].tolist()[0], alone["bytes"].tolist()) == ("allreduce", [64, 64])
    assert alone["comm"].tolist() == ["mpi 0x44000000"] * 2
    under = export().domain(2, "HorovodOps").range(0, 9, "HorovodAllreduce", 2)
    both = read(under, tmp_path).spans
    assert both[["name", "kind"]].values.tolist() == [
        ["HorovodAllreduce", "collective"],
        ["MPI_Allreduce", "host"],
        ["MPI_Comm_rank", "host"],
    ]


def test_system_calls_on_files_are_io(tmp_path: Path) -> None:
    export = Export()
    calls = ["read", "pread64", "openat64", "fwrite", "poll", "pthread_cond_wait", "mmap64"]
    for start, name in enumerate([*calls, "OS runtime libraries profiling started"]):
        export.row("OSRT_API", start, start + 1, gtid(), export.text(name), 0)
    got = read(export, tmp_path).spans
    assert got["kind"].tolist() == ["io"] * 4 + ["runtime"] * 3


def test_the_application_is_recognised_without_its_pid(tmp_path: Path) -> None:
    export = Export()
    for start in range(9):
        export.row("OSRT_API", start, start + 1, gtid(pid=5), export.text("read"), 0)
    assert len(read(export, tmp_path, pid=None).spans) == 9  # most rows
    export.kernel(1, 2, "gemm", pid=6)
    assert read(export, tmp_path, pid=None).spans["kind"].tolist() == ["kernel"]
    export.domain(1, "hpcprof", pid=7).range(1, 2, "step 1", 1, pid=7)
    got = read(export, tmp_path, pid=None)
    assert (len(got.own), len(got.spans)) == (1, 0)
    assert got.warnings == ("10 rows of 2 other processes were left out",)


def test_process_ids_above_24_bits_are_compared_as_nsys_keeps_them(tmp_path: Path) -> None:
    pid = (3 << 24) + 42
    export = Export().kernel(1, 2, "gemm", pid=42).kernel(1, 2, "gemm", pid=43)
    assert len(read(export, tmp_path, pid=pid).spans) == 1


def test_export_without_events_gives_no_spans(tmp_path: Path) -> None:
    export = Export().row("TARGET_INFO_SESSION_START_TIME", 1_764_547_200_123_456_789, "x")
    got = read(export, tmp_path)
    assert (len(got.spans), len(got.own), len(got.beacons)) == (0, 0, 0)
    assert got.utc_epoch_ns == 1_764_547_200_123_456_789


def test_the_environment_is_not_in_what_is_read(tmp_path: Path) -> None:
    export = Export().kernel(1, 2, "gemm")
    export.row("TARGET_INFO_SYSTEM_ENV", 1, "Local", "DeviceEnvironment", 610, "TOKEN=hunter2")
    assert "hunter2" not in repr(read(export, tmp_path))


@pytest.mark.parametrize("damage", ["text", "cut", "directory"])
def test_what_is_no_complete_export_is_refused_with_its_path(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "broken#1?.sqlite"
    if damage == "text":
        path.write_text("not a database at all " * 50)
    elif damage == "cut":
        export = Export()
        for number in range(2_000):
            export.kernel(number, number + 1, f"kernel {number}")
        whole = export.save(tmp_path / "whole.sqlite").read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    else:
        path.mkdir()
    with pytest.raises(InputError, match=r"broken#1\?\.sqlite"):
        read_export(path, None, None)


def test_wrong_types_in_a_column_are_refused_with_the_table(tmp_path: Path) -> None:
    export = Export().row("CUPTI_ACTIVITY_KIND_KERNEL", "soon", 2, gtid(), 0, 7, 1, 1)
    with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_KERNEL does not hold integers"):
        read(export, tmp_path, pid=None)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("HorovodAllreduce", "allreduce"),
        ("HorovodGroupedAllgather", "allgather"),
        ("HorovodReducescatter", "reducescatter"),
        ("HorovodAlltoall", "alltoall"),
        ("MPI_Iallreduce", "allreduce"),
        ("MPI_Reduce_scatter_block", "reducescatter"),
        ("MPI_Bcast", "broadcast"),
        ("MPI_Alltoallv", "alltoall"),
        ("MPI_Reduce", "reduce"),
        ("MPI_Comm_rank", None),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "allreduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_SIMPLE", "reducescatter"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("my_allreduce_kernel", None),
        ("", None),
    ],
)
def test_names_of_collectives(name: str, op: str | None) -> None:
    assert collective_op(name) == op
