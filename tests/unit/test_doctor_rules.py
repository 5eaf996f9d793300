"""The doctor's rules: what programs and files say becomes a state, a finding and an advice."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from hpcprof.annotate.native import build_hook
from hpcprof.doctor import CHECKS, capture, gpu, mpi, node, nsys, recorder, slurm, space, training
from hpcprof.doctor.command import Said
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, STATES, WARN, Row
from hpcprof.doctor.subject import Request, Subject

pytestmark = pytest.mark.unit

HOROVOD = Request(strategy="horovod", site="here", kill_wait_s=30)
NAMED = Subject(HOROVOD, {}, ("/env/bin/python",))
GUESSED = NAMED._replace(assumed="no job spec, so python on PATH was looked at")


def said(text: str, code: int = 0) -> Said:
    return Said(code, text)


def test_every_check_asks_a_question_and_says_what_to_do_instead() -> None:
    assert [check.name for check in CHECKS if not check.question.endswith("?")] == [
        "CPU sampling"  # its question has a remark behind it
    ]
    assert [check.name for check in CHECKS if not check.instead] == []


# ---- Slurm


def test_commands_without_a_cluster_fail() -> None:
    row = slurm.judge_commands([], said("sbatch: fatal: no configuration source", 1))
    assert (row.state, "no configuration source" in row.found) == (FAIL, True)


@pytest.mark.parametrize(
    ("missing", "state"), [([], OK), (["sacct"], WARN), (["srun"], FAIL), (["scontrol"], FAIL)]
)
def test_missing_commands(missing: list[str], state: str) -> None:
    assert slurm.judge_commands(missing, said("slurm-wlm 22.05.8")).state == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Slurmctld(primary) at head is UP\n", OK),
        ("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", OK),
        ("Slurmctld(primary) at head is DOWN\n", FAIL),
        ("scontrol: error: something\n", FAIL),
    ],
)
def test_controller(text: str, state: str) -> None:
    assert slurm.judge_ping(said(text)).state == state


def test_kill_wait_is_compared_with_the_site_file() -> None:
    (row,) = slurm.judge_kill_wait({"KillWait": "30 sec"}, HOROVOD)
    assert row.state == OK
    (row,) = slurm.judge_kill_wait({"KillWait": "10 sec"}, HOROVOD)
    assert (row.state, "kill_wait_s: 10" in row.advice) == (WARN, True)


@pytest.mark.parametrize(
    ("kind", "state"),
    [("accounting_storage/slurmdbd", OK), ("accounting_storage/none", WARN), ("(null)", WARN)],
)
def test_accounting(kind: str, state: str) -> None:
    assert slurm.judge_accounting({"AccountingStorageType": kind}).state == state


MPI_LISTS = {
    "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\n": ["none", "pmi2", "pmix"],
    "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmix\nspecific pmix plugin versions "
    "available: pmix_v3,pmix_v4\n": ["none", "cray_shasta", "pmix", "pmix_v3", "pmix_v4"],
    "srun: error: no configuration\n": [],
}


@pytest.mark.parametrize("printed", MPI_LISTS)
def test_mpi_types_of_old_and_new_versions(printed: str) -> None:
    assert slurm.mpi_types(printed) == MPI_LISTS[printed]


@pytest.mark.parametrize(
    ("wanted", "default", "strategy", "state"),
    [
        ("pmix", "none", "horovod", OK),
        (None, "pmix", "horovod", OK),
        ("pmix_v5", "pmix", "horovod", FAIL),
        (None, "none", "horovod", FAIL),
        (None, "none", "multiworker", OK),
    ],
)
def test_the_way_of_mpi(wanted: str | None, default: str, strategy: str, state: str) -> None:
    request = Request(strategy=strategy, mpi=wanted)
    assert slurm.judge_mpi(default, ["none", "pmi2", "pmix"], request).state == state


def test_no_list_of_mpi_types_is_not_checked() -> None:
    assert slurm.judge_mpi("pmix", [], HOROVOD).state == NOT_CHECKED


# ---- the node


@pytest.mark.parametrize(
    ("files", "locked", "infiniband", "state"),
    [
        (1024, 64 * 1024, False, OK),
        (256, 64 * 1024, False, WARN),
        (1024, 64 * 1024, True, WARN),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, True, OK),
    ],
)
def test_limits(files: int, locked: int, infiniband: bool, state: str) -> None:
    row = node.judge_limits(files, locked, has_infiniband=infiniband)
    assert row.state == state


@pytest.mark.parametrize(("source", "state"), [("tsc", OK), ("kvm-clock", OK), ("hpet", WARN)])
def test_clock_source(source: str, state: str) -> None:
    assert node.judge_clocksource(source).state == state


CHRONY = """Reference ID    : A29FC87B (162.159.200.123)
System time     : {} seconds slow of NTP time
Leap status     : {}
"""


@pytest.mark.parametrize(
    ("offset", "leap", "state", "words"),
    [
        ("0.000012345", "Normal", OK, "less than 1 ms"),
        ("0.004000000", "Normal", OK, "less than 20 ms"),
        ("1.500000000", "Normal", WARN, "off by 2 s"),
        ("0.000000000", "Not synchronised", WARN, "not synchronised"),
    ],
)
def test_chrony(offset: str, leap: str, state: str, words: str) -> None:
    row = node.judge_chrony(CHRONY.format(offset, leap))
    assert (row.state, words in row.found) == (state, True), row


@pytest.mark.parametrize(
    ("count", "expected"), [(0, 0), (1, 1), (4, 2), (99, 50), (100, 100), (87_654_321, 50_000_000)]
)
def test_free_space_is_rounded_down_so_that_nodes_agree(count: int, expected: int) -> None:
    assert space.rounded_down(count) == expected


# ---- nsys


def test_importer_must_be_of_the_same_version() -> None:
    printed = "NVIDIA Nsight Systems 2022.4.2.1-df9881f"
    assert nsys.judge_importer("2022.4.2.1", printed, "/x").state == OK
    assert nsys.judge_importer("2023.1.1.127", printed, "/x").state == WARN
    assert nsys.judge_importer("2023.1.1.127", "no number", "/x").state == NOT_CHECKED


@pytest.mark.parametrize(
    ("extra", "verdict", "state"),
    [
        ([], "Fail", OK),  # nobody asked for samples
        (["--sample=process-tree"], "OK", OK),
        (["--sample=process-tree"], "Fail", WARN),
        (["--sample=none"], "Fail", OK),
        (["-s", "none", "--cpuctxsw", "none"], "Fail", OK),
        (["-s", "process-tree"], "Fail", WARN),
        (["-sprocess-tree"], "Fail", WARN),
        (["--sampling-period=1000"], "Fail", OK),  # how often, not whether
    ],
)
def test_cpu_sampling_is_a_matter_only_where_it_is_asked_for(
    extra: list[str], verdict: str, state: str
) -> None:
    request = Request(nsys_extra=extra)
    assert nsys.judge_sampling("4", [("process-tree", verdict)], request).state == state


@pytest.mark.parametrize(
    ("scope", "state"),
    [("process-tree", OK), ("system-wide", WARN), ("cpu", NOT_CHECKED), ("", NOT_CHECKED)],
)
def test_only_the_scope_of_cpu_sampling_that_is_asked_for_is_judged(scope: str, state: str) -> None:
    verdicts = [("process-tree", "OK"), ("system-wide", "Fail")]
    request = Request(nsys_extra=[f"--sample={scope}"])
    assert nsys.judge_sampling("2", verdicts, request).state == state


def test_cpu_sampling_of_which_nsys_says_nothing_is_not_checked_where_it_is_asked_for() -> None:
    request = Request(nsys_extra=["--cpuctxsw=process-tree"])
    assert nsys.judge_sampling("2", [], request).state == NOT_CHECKED
    assert nsys.judge_sampling("2", [], Request()).state == OK


def test_sessions_of_the_node_are_listed() -> None:
    head = "              ID         TIME                       STATE LAUNCH NAME\n"
    assert nsys.judge_sessions(said(head)).found == "none on this node"
    row = nsys.judge_sessions(
        said(head + "     12       00:10                  Collection      1 hpcprof-7-0-0\n")
    )
    assert (row.state, row.found) == (OK, "1 on this node: hpcprof-7-0-0")
    assert nsys.judge_sessions(said("cannot open the table", 1)).state == WARN


# ---- the training


def test_an_old_python_fails() -> None:
    old = {"version": [3, 7, 9], "executable": "/usr/bin/python3"}
    assert training.judge_python(old, "").state == FAIL
    assert training.judge_python({**old, "version": [3, 8, 0]}, "").state == OK


def tensorflow(installed: str | None, imported: object, gpus: int = 0) -> Row:
    subject = NAMED._replace(request=Request(strategy="horovod", gpus_per_node=gpus))
    found = {} if imported is None else {"tensorflow": imported}
    (row,) = training.judge_tensorflow({"tensorflow": installed}, found, subject, "it hangs")
    return row


@pytest.mark.parametrize(
    ("installed", "imported", "gpus", "state"),
    [
        (None, None, 0, FAIL),
        ("2.15.1", None, 0, NOT_CHECKED),
        ("2.15.1", {"error": "ImportError: numpy"}, 0, FAIL),
        ("2.15.1", {"version": "2.15.1", "cuda": True, "nvtx": True}, 4, OK),
        ("2.15.1", {"version": "2.15.1", "cuda": True, "nvtx": False}, 4, WARN),
        ("2.15.1", {"version": "2.15.1", "cuda": False, "nvtx": False}, 4, FAIL),
        ("2.15.1", {"version": "2.15.1", "cuda": False, "nvtx": False}, 0, OK),
    ],
)
def test_tensorflow(installed: str | None, imported: object, gpus: int, state: str) -> None:
    assert tensorflow(installed, imported, gpus).state == state


BUILT = {"version": "0.28.1", "mpi": True, "gloo": True, "nccl": False, "nvtx": True}


def horovod(installed: str | None, imported: object, request: Request = HOROVOD) -> Row:
    found = {} if imported is None else {"horovod": imported}
    (row,) = training.judge_horovod({"horovod": installed}, found, request, "it hangs")
    return row


def test_horovod_as_it_was_built() -> None:
    row = horovod("0.28.1", BUILT)
    assert (row.state, row.found) == (OK, "0.28.1, built with MPI, GLOO, NVTX")
    assert horovod("0.28.1", {**BUILT, "mpi": False}).state == FAIL
    assert horovod("0.28.1", {**BUILT, "nvtx": False}).state == WARN
    assert horovod("0.28.1", BUILT, HOROVOD._replace(gpus_per_node=4)).state == WARN
    assert horovod("0.28.1", {"error": "ImportError: mpi_lib"}).state == FAIL


def test_missing_horovod_fails_only_where_the_spec_wants_it() -> None:
    assert horovod(None, None).state == FAIL
    assert horovod(None, None, Request()).state == NOT_CHECKED
    assert horovod("0.28.1", None).state == NOT_CHECKED


@pytest.mark.parametrize(
    ("numpy", "version", "warned"),
    [("1.26.4", "2.15.1", False), ("2.0.1", "2.15.1", True), ("2.0.1", "2.18.0", False)],
)
def test_numpy_2_with_an_old_tensorflow(numpy: str, version: str, warned: bool) -> None:
    rows = list(training.judge_numpy({"numpy": numpy, "tensorflow": version}))
    assert [row.state for row in rows] == ([WARN] if warned else [])


@pytest.mark.parametrize(
    ("nvtx", "nsys_version", "state"),
    [
        ("0.2.11", "2022.4.2.1", OK),
        ("0.2.12", "2022.4.2.1", WARN),
        ("0.2.13", "2023.2.3", WARN),
        ("0.2.13", "2025.1.1", OK),  # nobody knows; the capture proves it
        ("0.2.13", "", OK),
        (None, "2022.4.2.1", WARN),
    ],
)
def test_nvtx_and_nsys(nvtx: str | None, nsys_version: str, state: str) -> None:
    assert training.judge_nvtx({"nvtx": nvtx}, nsys_version).state == state


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.15.1+cu118", (2, 15, 1)), ("2.16.0rc0", (2, 16)), ("dev", ())]
)
def test_versions_are_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert training.version_of(text) == numbers


# ---- our NVTX recorder


def test_a_recorder_that_is_missing_or_broken_is_told_with_what_to_do(tmp_path: Path) -> None:
    library = tmp_path / build_hook.LIBRARY
    missing = recorder.judge(library)
    assert (missing.state, missing.check) == (WARN, "NVTX recorder")
    assert missing.found.startswith("it was not compiled")
    library.write_text("no library")
    broken = recorder.judge(library)
    assert broken.state == WARN
    assert broken.found.startswith("it cannot be loaded here: ")
    assert missing.advice and broken.advice


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_recorder_that_can_be_loaded_is_ok(tmp_path: Path) -> None:
    assert recorder.judge(build_hook.compile_recorder(tmp_path)).state == OK


# ---- the capture


def captured(**fields: object) -> capture.Captured:
    values = {"nsys": "2022.4.2", "record": {"state": "OK"}, "answer": {"nvtx": "0.2.12"}}
    return capture.Captured(**{**values, "ranges": 15, "problem": "", **fields})  # type: ignore[arg-type]


def test_a_capture_with_all_its_ranges_is_ok() -> None:
    assert capture.judge(captured(), NAMED).state == OK


def test_a_capture_without_ranges_names_the_pair_and_the_cure() -> None:
    row = capture.judge(captured(ranges=0), NAMED)
    assert row.state == FAIL
    assert row.found == "nvtx 0.2.12 and nsys 2022.4.2 do not fit: ranges are not recorded"
    assert "pip install 'nvtx<0.2.12'" in row.advice


def test_a_capture_with_a_part_of_its_ranges_fails() -> None:
    row = capture.judge(captured(ranges=7), NAMED)
    assert (row.state, row.found[:7]) == (FAIL, "7 of 15")


def test_a_capture_asks_nsys_for_what_the_job_would_and_for_our_ranges() -> None:
    request = Request(nsys_trace=["cuda", "nvtx", "osrt"], nsys_extra=["--stats", "true"])
    assert capture.options_of(request) == {
        "nsys_trace": ["nvtx", "cuda", "osrt"],
        "nsys_extra": ["--stats", "true"],
    }
    assert capture.options_of(Request(nsys_trace=["cuda"]))["nsys_trace"] == ["nvtx", "cuda"]


def test_options_with_which_nothing_is_recorded_are_not_blamed_on_nvtx() -> None:
    request = Request(nsys_trace=["nvtx"], nsys_extra=["--capture-range=nvtx"])
    asked = capture.judge(captured(ranges=0), NAMED)
    row = capture.judge_options(asked, capture.judge(captured(), NAMED), request)
    assert row.state == FAIL
    assert "(--trace=nvtx --capture-range=nvtx)" in row.found
    assert row.found.endswith("without them: all ranges arrive")
    assert "profile.extra" in row.advice
    plain = capture.judge(captured(ranges=0), NAMED)
    assert capture.judge_options(asked, plain, request) == plain  # the pair it is
    unknown = Row("capture", NOT_CHECKED, "launch did not end", "Again.")
    assert capture.judge_options(asked, unknown, request).state == FAIL


def test_options_that_would_be_left_out_are_told() -> None:
    record = {"state": "OK", "warnings": ["nsys option --x was left out: …", "something else"]}
    row = capture.judge(captured(record=record), NAMED)
    assert (row.state, "nsys option --x was left out" in row.found) == (WARN, True)
    assert "something else" not in row.found


def test_a_capture_without_a_readable_report_fails_with_the_reason() -> None:
    row = capture.judge(captured(ranges=None, problem="the importer is missing"), NAMED)
    assert (row.state, "the importer is missing" in row.found) == (FAIL, True)


def test_a_capture_that_nsys_did_not_start_fails_with_what_nsys_said() -> None:
    record = {
        "state": "NOT_PROFILED",
        "state_reason": "nsys could not be started",
        "warnings": ["it said: Agent launcher failed."],
    }
    row = capture.judge(captured(record=record, ranges=None), NAMED)
    assert (row.state, "Agent launcher failed" in row.found) == (FAIL, True)


def test_a_training_without_nvtx_is_warned_and_a_guessed_python_is_not_judged() -> None:
    without = captured(answer={"problem": "package nvtx cannot be used"}, ranges=0)
    assert capture.judge(without, NAMED).state == WARN
    assert capture.judge(without, GUESSED).state == NOT_CHECKED


def test_a_program_that_failed_for_another_reason_says_nothing_about_nsys() -> None:
    broken = captured(answer={"problem": "SyntaxError: invalid syntax"}, ranges=0)
    assert capture.judge(broken, NAMED).state == NOT_CHECKED


# ---- GPU and MPI

SMI = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
"""


def test_gpus_are_counted_against_the_spec() -> None:
    (row,) = gpu.judge_gpus(said(SMI), 2)
    assert (row.state, row.found) == (OK, "2 x NVIDIA A100-SXM4-40GB")
    (row,) = gpu.judge_gpus(said(SMI), 4)
    assert (row.state, "gpus_per_node is 4" in row.found) == (FAIL, True)
    (row,) = gpu.judge_gpus(said("NVIDIA-SMI has failed", 9), 2)
    assert row.state == FAIL


def test_mig_is_told() -> None:
    mig = SMI + "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
    assert [row.state for row in gpu.judge_gpus(said(mig), 2)] == [OK, WARN]


@pytest.mark.parametrize(
    ("wanted", "on_node", "state"),
    [(0, False, NOT_CHECKED), (4, False, NOT_CHECKED), (0, True, NOT_CHECKED), (4, True, FAIL)],
)
def test_no_gpu_is_a_failure_only_on_a_node_that_should_have_one(
    wanted: int, on_node: bool, state: str
) -> None:
    assert gpu.judge_absence(wanted, on_node=on_node).state == state


@pytest.mark.parametrize(
    ("params", "state"),
    [
        ("EnableMSI: 1\nRmProfilingAdminOnly: 0\n", OK),
        ("RmProfilingAdminOnly: 1\n", WARN),
        ("EnableMSI: 1\n", NOT_CHECKED),
    ],
)
def test_gpu_counters(params: str, state: str) -> None:
    assert gpu.judge_counters(params, "not in it").state == state


@pytest.mark.parametrize(
    ("cuda", "wanted", "cupti", "state"),
    [
        ("libcuda.so.1", "12", "/x/libcupti.so.12", OK),
        ("libcuda.so.1", "12", None, WARN),
        ("libcuda.so.1", None, None, OK),
        (None, "12", "/x/libcupti.so.12", FAIL),
    ],
)
def test_gpu_libraries(cuda: str | None, wanted: str | None, cupti: str | None, state: str) -> None:
    row = gpu.judge_libraries({"cuda": cuda, "wanted": wanted, "cupti": cupti})
    assert row.state == state


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({"by": "hvd", "rank": 1, "size": 4}, OK),
        ({"by": "hvd", "rank": 0, "size": 1}, FAIL),
        ({"by": "hvd", "rank": 2, "size": 4}, WARN),
        ({}, FAIL),
    ],
)
def test_the_world_that_mpi_shows(found: dict[str, object], state: str) -> None:
    row = mpi.judge(found, said("PMIX ERROR", 1), {"SLURM_PROCID": "1"}, 4)
    assert row.state == state


# ---- what holds for all of them


def test_advice_is_one_sentence_and_never_missing(tmp_path: Path) -> None:
    rows = [
        *slurm.judge_kill_wait({"KillWait": "10 sec"}, HOROVOD),
        slurm.judge_accounting({}),
        slurm.judge_mpi("none", ["none"], HOROVOD),
        node.judge_clocksource("hpet"),
        node.judge_limits(10, 10, has_infiniband=True),
        gpu.judge_counters("RmProfilingAdminOnly: 1"),
        gpu.judge_absence(1, on_node=True),
        training.judge_nvtx({}, ""),
        tensorflow(None, None),
        horovod(None, None),
        capture.judge(captured(ranges=0), NAMED),
        mpi.judge({}, said("x", 1), {}, 2),
    ]
    assert {row.state for row in rows} <= set(STATES) - {OK}
    assert [row for row in rows if not row.advice or row.advice[0].islower()] == []
