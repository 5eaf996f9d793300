"""One rank out of its sources: what is believed, what is said when something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcprof.artifacts import atomic
from hpcprof.artifacts.manifest import new_manifest
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.run_record import new_run_record
from hpcprof.errors import InputError
from hpcprof.readers import read_anchors, read_job, read_rank
from hpcprof.trace import Trace, check_spans
from tests.unit.nsys_export import Export
from tests.unit.span_writer import OPENED_MONOTONIC_NS, OPENED_REALTIME_NS, SpanFile

pytestmark = pytest.mark.unit

RANK = 3
OFFSET = 5_000_000_000  # nsys time to CLOCK_MONOTONIC
ENDED = {"realtime_ns": OPENED_REALTIME_NS + 900, "monotonic_ns": OPENED_MONOTONIC_NS + 900}


@pytest.fixture
def paths(tmp_path: Path) -> ArtifactPaths:
    made = ArtifactPaths(tmp_path / "run")
    made.rank_folder(RANK).mkdir(parents=True)
    manifest(made)
    return made


def manifest(paths: ArtifactPaths, rank: int = RANK, **fields: Any) -> None:
    identity = {"rank": rank, "local_rank": 1, "world_size": 8, "node": "node2"}
    record = new_manifest({**identity, "job_id": "4711", "slurm_step": "0"}, ["python"])
    started = {"realtime_ns": OPENED_REALTIME_NS - 50, "monotonic_ns": OPENED_MONOTONIC_NS - 50}
    record.update(started=started, ended=ENDED, exit_code=0, profiler={"name": "nsys"})
    paths.rank_folder(rank).mkdir(parents=True, exist_ok=True)
    atomic.write_json(paths.manifest(rank), {**record, **fields})


def own_records(paths: ArtifactPaths, steps: int = 3, cut: int = 0) -> None:
    file = SpanFile(rank=RANK)
    for step in range(steps):
        base = OFFSET + step * 1_000_000
        file.phase(base + 100_000, base + 200_000, "input", step)
        file.step(base + 300_000, base + 900_000, step)
    paths.spans(RANK).write_bytes(file.content[: len(file.content) - cut])


def export(steps: int = 3, *, beacons: bool = True, apart_ns: int = 0) -> Export:
    """The same steps as nsys sees them, a kernel and an allreduce in each."""
    made = Export().domain(1, "hpcprof").domain(2, "HorovodOps")
    made.row(
        "TARGET_INFO_SESSION_START_TIME", OPENED_REALTIME_NS - OPENED_MONOTONIC_NS + OFFSET, ""
    )
    for step in range(steps):
        base = step * 1_000_000
        if beacons:
            made.beacon(step, OFFSET + apart_ns, base, 4_000)
        made.range(base + 100_000, base + 200_000, "phase input", 1)
        made.range(base + 299_000, base + 901_000, f"step {step}", 1)
        made.range(base + 500_000, base + 800_000, "HorovodAllreduce", 2, kind=60, payload=64)
        made.kernel(base + 310_000, base + 400_000, "gemm")
    return made


def read(paths: ArtifactPaths, tmp_path: Path) -> Trace:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    trace = read_rank(paths, RANK, work, None)
    check_spans(trace.spans)
    return trace


def test_sources_are_merged_on_the_clock_of_the_node(paths: ArtifactPaths, tmp_path: Path) -> None:
    own_records(paths)
    export().save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    info = trace.rank
    assert (info.state, info.reason, info.node, info.pid) == ("OK", "", "node2", 4711)
    assert (info.exit_code, info.ended) == (0, tuple(ENDED.values()))
    nsys = info.sources["nsys"]
    assert (nsys.rows, nsys.first_step, nsys.last_step) == (6, 0, 2)
    assert nsys.clock_bound_ns is not None and nsys.clock_bound_ns <= 2_001
    spans = trace.spans[["kind", "source", "step"]].astype(object).values.tolist()
    per_step = [("phase", "hpcprof"), ("step", "hpcprof"), ("kernel", "nsys")]
    per_step += [("collective", "nsys")]
    assert spans == [[kind, source, step] for step in range(3) for kind, source in per_step]
    kernels = trace.spans[trace.spans["kind"] == "kernel"]["start_ns"]
    true = [OFFSET + step * 1_000_000 + 310_000 for step in range(3)]
    assert all(abs(got - want) <= nsys.clock_bound_ns for got, want in zip(kernels, true))  # noqa: B905


def test_own_spans_alone_are_complete_when_no_profiler_was_asked_for(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    manifest(paths, profiler={"name": "none"}, state_reason="nsys is not on this node")
    own_records(paths)
    trace = read(paths, tmp_path)
    assert (trace.rank.state, trace.rank.reason) == (
        "NOT_PROFILED",
        "nsys: nsys is not on this node",
    )
    assert trace.rank.sources["nsys"].state == "NOT_PROFILED"
    assert len(trace.spans) == 6


def test_a_rank_killed_before_it_could_say_why_nothing_was_recorded_is_not_known(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    manifest(paths, profiler={"name": "none"}, ended=None, exit_code=None)
    own_records(paths)
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert nsys.reason == "not known: it was killed before it could say why"
    manifest(paths, profiler={"name": "none"})
    assert read(paths, tmp_path).rank.sources["nsys"].reason == "no profiler was asked for"


def test_a_missing_report_is_lost_and_own_spans_remain(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    manifest(paths, ended=None, exit_code=None)
    own_records(paths)
    trace = read(paths, tmp_path)
    assert trace.rank.state == "PARTIAL"
    assert trace.rank.sources["nsys"].reason == (
        "nsys left no report: the rank was killed together with its launcher "
        "(time limit or node failure)"
    )
    assert len(trace.spans) == 6


@pytest.mark.parametrize(
    ("own", "report", "state"),
    [
        (True, "good", "OK"),
        (True, "empty", "EMPTY"),
        (True, "broken", "PARTIAL"),
        (False, "good", "PARTIAL"),
        (False, "empty", "EMPTY"),
        (False, "broken", "LOST"),
    ],
)
def test_the_state_of_a_rank_sums_up_its_sources(
    paths: ArtifactPaths, tmp_path: Path, own: bool, report: str, state: str
) -> None:
    if own:
        own_records(paths)
    if report == "broken":
        paths.nsys_sqlite(RANK).write_text("not a database" * 100)
    else:
        made = export() if report == "good" else Export().row("StringIds", 1, "x")
        made.save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    assert trace.rank.state == state
    assert (trace.rank.reason == "") == (state == "OK")
    assert (len(trace.spans) > 0) == (own or report == "good")


def test_a_machine_without_nsys_is_told_where_the_report_was_made(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    manifest(paths, profiler={"name": "nsys", "path": "/opt/nsys", "version": "2022.4.2.1"})
    own_records(paths)
    paths.nsys_report(RANK).write_text("report")
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert nsys.state == "LOST"
    assert "needs nsys, which is not on this machine" in nsys.reason
    assert nsys.reason.endswith("It was recorded by /opt/nsys (2022.4.2.1) on node2")


def test_ranges_in_the_report_replace_lost_records(paths: ArtifactPaths, tmp_path: Path) -> None:
    paths.spans(RANK).write_bytes(b"HPCPROF")
    export().save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    assert "ends within its header" in trace.rank.sources["spans"].reason
    steps = trace.spans[trace.spans["kind"] == "step"]
    assert steps[["step", "source"]].values.tolist() == [[0, "nsys"], [1, "nsys"], [2, "nsys"]]
    phases = trace.spans[trace.spans["kind"] == "phase"]
    assert phases[["phase", "step"]].values.tolist() == [["input", 0], ["input", 1], ["input", 2]]
    assert trace.spans["step"].notna().all()


def test_a_torn_record_makes_the_rank_partial(paths: ArtifactPaths, tmp_path: Path) -> None:
    manifest(paths, profiler={"name": "none"})
    own_records(paths, cut=7)
    trace = read(paths, tmp_path)
    assert trace.rank.state == "PARTIAL"
    assert "cut in the middle" in trace.rank.sources["spans"].warnings[0]
    assert trace.rank.sources["spans"].last_step == 1  # of 2 the input is there, the end is not


def test_what_comes_after_the_last_step_is_no_step(paths: ArtifactPaths, tmp_path: Path) -> None:
    file = SpanFile(rank=RANK)
    for step in range(3):
        file.step(OPENED_MONOTONIC_NS + step * 10, OPENED_MONOTONIC_NS + step * 10 + 9, step)
    saving = OPENED_MONOTONIC_NS + 30  # the model is saved, on this rank alone
    paths.spans(RANK).write_bytes(file.phase(saving, saving + 90, "checkpoint", 3).content)
    assert read(paths, tmp_path).rank.sources["spans"].last_step == 2


def test_steps_that_disagree_are_a_warning(paths: ArtifactPaths, tmp_path: Path) -> None:
    own_records(paths, steps=2)
    export(steps=3).save(paths.nsys_sqlite(RANK))
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert nsys.state == "PARTIAL"
    assert nsys.reason == "the report holds 3 steps where hpcprof recorded 2 (steps 0 to 2)"


def test_a_report_placed_wrong_is_noticed(paths: ArtifactPaths, tmp_path: Path) -> None:
    own_records(paths)
    export(apart_ns=30_000_000).save(paths.nsys_sqlite(RANK))
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert nsys.state == "PARTIAL"
    assert "steps start 30.0 ms (median) from where hpcprof recorded them" in nsys.reason


def test_without_our_ranges_in_the_report_the_reason_is_said(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    made = Export().domain(2, "HorovodOps").range(310_000, 320_000, "HorovodAllreduce", 2)
    made.range(2_810_000, 2_950_000, "HorovodAllreduce", 2)
    utc_at_zero = OPENED_REALTIME_NS - OPENED_MONOTONIC_NS + OFFSET
    made.row("TARGET_INFO_SESSION_START_TIME", utc_at_zero, "").save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    nsys = trace.rank.sources["nsys"]
    assert (nsys.state, nsys.clock_bound_ns) == ("PARTIAL", 1_000_000)
    assert "holds no step range of hpcprof. The nvtx package" in nsys.reason
    assert nsys.reason == nsys.warnings[0]
    assert "holds no beacon" in nsys.warnings[1]
    found = trace.spans[trace.spans["kind"] == "collective"]
    assert found[["start_ns", "step"]].values.tolist() == [
        [OFFSET + 310_000, 0],
        [OFFSET + 2_810_000, 2],
    ]


NSYS = {"name": "nsys", "path": "/opt/nsys", "version": "2022.4.2"}


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "0.2.12",
            "nvtx 0.2.12 and nsys 2022.4.2: no NVTX range arrived; pip install 'nvtx<0.2.12'; "
            "hpcprof doctor checks the pair",
        ),
        ("0.3", "nvtx 0.3 and nsys 2022.4.2: no NVTX range arrived; pip install 'nvtx<0.2.12'; "),
        ("0.2.8", "nvtx 0.2.8 and nsys 2022.4.2: no NVTX range arrived; hpcprof doctor"),
    ],
)
def test_a_pair_of_nvtx_and_nsys_that_records_nothing_is_named(
    paths: ArtifactPaths, tmp_path: Path, version: str, text: str
) -> None:
    manifest(paths, profiler=NSYS, nvtx_version=version)
    own_records(paths)
    made = Export().kernel(0, 100, "gemm").kernel(2_000_000, 2_990_000, "gemm")
    utc_at_zero = OPENED_REALTIME_NS - OPENED_MONOTONIC_NS + OFFSET
    made.row("TARGET_INFO_SESSION_START_TIME", utc_at_zero, "").save(paths.nsys_sqlite(RANK))
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert nsys.state == "PARTIAL"
    assert nsys.reason.startswith(text)


@pytest.mark.parametrize(
    ("argv", "is_blamed"),
    [
        (["nsys", "profile", "--trace=cuda,mpi", "--wait=primary"], False),
        (["nsys", "launch", "--trace=cuda,nvtx,mpi"], True),
        (["nsys", "profile", "--trace=cuda", "-tnvtx"], True),
        (["nsys", "profile", "--trace=cuda", "-t", "nvtx"], True),  # not looked into: not known
        (["nsys", "profile", "--trace-fork-before-exec=true"], True),
        (None, True),
        ("nsys", True),
    ],
)
def test_where_nvtx_was_not_traced_its_package_is_not_blamed(
    paths: ArtifactPaths, tmp_path: Path, argv: Any, is_blamed: bool
) -> None:
    manifest(paths, profiler={**NSYS, "argv": argv}, nvtx_version="0.2.12")
    own_records(paths)
    made = Export().kernel(0, 100, "gemm").kernel(2_000_000, 2_990_000, "gemm")
    utc_at_zero = OPENED_REALTIME_NS - OPENED_MONOTONIC_NS + OFFSET
    made.row("TARGET_INFO_SESSION_START_TIME", utc_at_zero, "").save(paths.nsys_sqlite(RANK))
    reason = read(paths, tmp_path).rank.sources["nsys"].reason
    assert reason.startswith("nvtx 0.2.12 and nsys") == is_blamed
    if not is_blamed:
        assert reason == "nvtx is not in profile.trace, so steps are not in the report"


def test_a_window_shorter_than_a_step_does_not_accuse_nvtx(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    manifest(paths, profiler=NSYS, nvtx_version="0.2.12")
    own_records(paths)
    made = Export().kernel(310_000, 890_000, "gemm")  # within step 0
    utc_at_zero = OPENED_REALTIME_NS - OPENED_MONOTONIC_NS + OFFSET
    made.row("TARGET_INFO_SESSION_START_TIME", utc_at_zero, "").save(paths.nsys_sqlite(RANK))
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert not [warning for warning in nsys.warnings if "nvtx" in warning.lower()]


def test_ranges_that_arrived_are_no_mismatch(paths: ArtifactPaths, tmp_path: Path) -> None:
    manifest(paths, profiler=NSYS, nvtx_version="0.2.12")
    own_records(paths)
    export().save(paths.nsys_sqlite(RANK))
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert (nsys.state, nsys.reason) == ("OK", "")
    assert not [warning for warning in nsys.warnings if "nvtx" in warning.lower()]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "the report holds no event of the training: rank.sqlite"),
        (
            {"nvtx_version": "0.2.13"},
            "the report holds no event of the training: rank.sqlite: nvtx 0.2.13 and nsys "
            "2022.4.2: no NVTX range arrived; pip install 'nvtx<0.2.12'; hpcprof doctor checks "
            "the pair",
        ),
        (
            {"nvtx_version": "0.2.13", "state": "EMPTY", "state_reason": "it never began"},
            "the report holds no event of the training: rank.sqlite: it never began",
        ),
    ],
)
def test_why_a_report_is_empty_is_said_as_far_as_it_is_known(
    paths: ArtifactPaths, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    manifest(paths, profiler=NSYS, **fields)
    own_records(paths)
    Export().row("StringIds", 1, "x").save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    assert (trace.rank.state, trace.rank.sources["nsys"].reason) == ("EMPTY", reason)


@pytest.mark.parametrize("state", ["EMPTY", "LOST"])
def test_without_a_report_the_launcher_knows_best_why(
    paths: ArtifactPaths, tmp_path: Path, state: str
) -> None:
    why = "the training never reached the range to record"
    manifest(paths, profiler=NSYS, state=state, state_reason=why)
    own_records(paths)
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert (nsys.state, nsys.reason) == (state, why)


def test_a_recording_that_was_stopped_early_is_told_as_the_launcher_says_it(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    why = "stopped before the time limit"
    manifest(paths, profiler=NSYS, state="PARTIAL", state_reason=f"{why}; nsys report, 4711 bytes")
    own_records(paths)
    export(steps=2).save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    nsys = trace.rank.sources["nsys"]
    assert (nsys.state, nsys.reason, nsys.last_step) == ("PARTIAL", why, 1)
    assert (trace.rank.state, trace.rank.reason) == ("PARTIAL", f"nsys: {why}")


def test_of_a_window_the_steps_are_those_recorded_whole(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths, steps=5)
    made = export(steps=4)
    made.kernel(4_150_000, 4_160_000, "gemm").save(paths.nsys_sqlite(RANK))  # before step 4
    nsys = read(paths, tmp_path).rank.sources["nsys"]
    assert (nsys.first_step, nsys.last_step) == (0, 3)


def test_the_profiler_at_work_is_in_the_trace_from_both_sides(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    file = SpanFile(rank=RANK).busy(OFFSET + 10, OFFSET + 20, "profiler start", 0)
    paths.spans(RANK).write_bytes(file.step(OFFSET + 30, OFFSET + 90, 0).content)
    manifest(paths, profiler_busy=[[OFFSET + 100, OFFSET + 200, "nsys stop"]])
    spans = read(paths, tmp_path).spans
    busy = spans[spans["kind"] == "busy"]
    assert busy[["start_ns", "name", "source"]].values.tolist() == [
        [OFFSET + 10, "profiler start", "hpcprof"],
        [OFFSET + 100, "nsys stop", "launcher"],
    ]


def test_damaged_notes_leave_the_rank_readable_and_are_among_its_warnings(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    export().save(paths.nsys_sqlite(RANK))
    manifest(paths, profiler_busy=7, gpus=[3], horovod_size="x", hangs=[[]], profiler="nsys")
    info = read(paths, tmp_path).rank
    assert (info.state, info.gpus, info.horovod_size, info.hangs) == ("OK", None, None, ())
    assert len([text for text in info.warnings if "makes no sense" in text]) == 4


def test_a_hang_of_which_nobody_knew_the_step_is_dated_by_our_records(
    paths: ArtifactPaths, tmp_path: Path
) -> None:
    own_records(paths)
    at = {"realtime_ns": 1, "monotonic_ns": OFFSET + 1_900_000}  # step 1 ends at this moment
    early = {"realtime_ns": 1, "monotonic_ns": OFFSET}
    notes = [{"step": None, "seconds": 640, "at": at, "threads": []}]
    notes += [{"step": None, "seconds": 640, "at": early}, {"step": 0, "seconds": 9, "at": at}]
    manifest(paths, hangs=notes)
    info = read(paths, tmp_path).rank
    assert [hang.step for hang in info.hangs] == [1, -1, 0]
    paths.spans(RANK).unlink()
    assert [hang.step for hang in read(paths, tmp_path).rank.hangs] == [None, None, 0]


def test_a_report_that_cannot_be_placed_is_lost(paths: ArtifactPaths, tmp_path: Path) -> None:
    own_records(paths)
    Export().kernel(1, 2, "gemm").save(paths.nsys_sqlite(RANK))
    trace = read(paths, tmp_path)
    assert trace.rank.sources["nsys"].state == "LOST"
    assert "nothing ties the report's times" in trace.rank.reason
    assert set(trace.spans["source"]) == {"hpcprof"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": 9}, "rank 3: .*has schema 9, this hpcprof reads 1"),
        ({"rank": 5}, "rank 3: .*belongs to rank 5"),
        ({"node": None, "started": 7}, "rank 3: .*is not a manifest"),
        ({"pid": float("inf")}, "rank 3: .*is not a manifest"),
    ],
)
def test_a_manifest_that_cannot_be_believed_is_refused(
    paths: ArtifactPaths, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    atomic.write_json(
        paths.manifest(RANK), {**atomic.read_json(paths.manifest(RANK), ""), **fields}
    )
    with pytest.raises(InputError, match=message):
        read(paths, tmp_path)


def test_a_missing_manifest_names_the_rank(paths: ArtifactPaths, tmp_path: Path) -> None:
    paths.manifest(RANK).unlink()
    with pytest.raises(InputError, match="manifest of rank 3 is missing"):
        read(paths, tmp_path)


def test_anchors_are_the_beacons_and_the_pairs_of_the_manifest(paths: ArtifactPaths) -> None:
    real, mono = OPENED_REALTIME_NS, OPENED_MONOTONIC_NS
    paths.spans(RANK).write_bytes(
        SpanFile(rank=RANK).beacon(0, mono + 10, mono + 14, real + 12).content
    )
    node, table = read_anchors(paths, RANK)
    assert node == "node2"
    assert table.values.tolist() == [
        [-1, mono - 50, mono - 50, real - 50],
        [-1, mono, mono, real],
        [0, mono + 10, mono + 14, real + 12],
        [-1, mono + 900, mono + 900, real + 900],
    ]
    paths.spans(RANK).unlink()
    assert len(read_anchors(paths, RANK).table) == 2


def test_the_job_is_what_its_record_and_its_ranks_tell(paths: ArtifactPaths) -> None:
    record = new_run_record(name="cnn", strategy="horovod", world_size=None)
    atomic.write_json(paths.run_json, record)
    manifest(paths, rank=0, node="node1")
    paths.rank_folder(9).mkdir()  # died before its manifest
    job = read_job(paths)
    assert (job.name, job.job_id, job.strategy, job.world_size, job.nodes) == (
        *("cnn", "4711", "horovod", 8),
        ("node1", "node2"),
    )
