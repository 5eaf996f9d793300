"""The capture window: the same steps on every rank, and never a word into the training."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpcprof.artifacts import rank_env, rank_state, span_format
from tests.unit import annotated

pytestmark = pytest.mark.unit

SIX_STEPS = """
for _ in range(6):
    with annotate.step():
        time.sleep(0.001)
print("trained")
"""

# stands in for the driver: writes down each call; the calling thread has a context when CONTEXT is
# set or one has been pushed, and device 1 of 2 has an active primary context
FAKE_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
static int pushed;
static int note(const char *call, long value) {
    FILE *log = fopen(getenv("FAKE_CUDA_LOG"), "a");
    fprintf(log, "%s %ld\\n", call, value);
    fclose(log);
    return 0;
}
static int profiler(const char *call) {
    note(call, pushed);
    if (getenv("FAKE_CUDA_RESULT")) return atoi(getenv("FAKE_CUDA_RESULT"));
    return getenv("FAKE_CUDA_CONTEXT") || pushed ? 0 : 201;
}
int cuProfilerStart(void) { return profiler("start"); }
int cuProfilerStop(void) { return profiler("stop"); }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0; *active = device == 1; return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)0x7f0000001234; return note("retain", device);
}
int cuDevicePrimaryCtxRelease_v2(int device) { return note("release", device); }
int cuCtxPushCurrent_v2(void *context) {
    pushed = context == (void *)0x7f0000001234; return note("push", pushed);
}
int cuCtxPopCurrent_v2(void **context) { pushed = 0; return note("pop", 0); }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a libcuda.so.1 that writes down its calls; skips without gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to compile the stand-in for libcuda.so.1")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(FAKE_DRIVER)
    library = folder / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, folder / "cuda.c"], check=True, timeout=60
    )
    return folder


def cuda(driver: Path, log: Path, **more: str) -> dict[str, str]:
    """Environment in which the stand-in is the driver."""
    return {
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_CUDA_LOG": str(log),
        rank_env.WINDOW: "2-3,cuda",
        **more,
    }


def test_the_profiler_is_started_and_stopped_around_its_steps(tmp_path: Path, driver: Path) -> None:
    log = tmp_path / "log"
    state = tmp_path / "state"
    done = annotated.run(SIX_STEPS, tmp_path, state, **cuda(driver, log, FAKE_CUDA_CONTEXT="1"))

    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert log.read_text().split() == ["start", "0", "stop", "0"]
    found = annotated.records(tmp_path)
    start, stop = (each for each in found if each.kind == span_format.KIND_BUSY)
    assert (start.name, start.step) == ("profiler start", 2)
    assert (stop.name, stop.step) == ("profiler stop", 3)
    steps = annotated.steps(tmp_path)
    assert sorted(steps) == [0, 1, 2, 3, 4, 5]
    assert steps[1].end_ns <= start.start_ns <= start.end_ns <= steps[2].start_ns
    assert steps[3].end_ns <= stop.start_ns <= stop.end_ns <= steps[4].start_ns
    assert rank_state.find(state, rank_state.OPEN_WINDOW) == str(start.start_ns)
    assert rank_state.find(state, rank_state.CLOSE_WINDOW) == str(stop.start_ns)
    assert rank_state.find(state, rank_state.WINDOW_FAILED) is None


def test_beacons_are_placed_while_the_profiler_listens(tmp_path: Path, driver: Path) -> None:
    """One outside the recording would tie nothing to the node's clock."""
    log = tmp_path / "log"
    annotated.run(SIX_STEPS, tmp_path, **cuda(driver, log, FAKE_CUDA_CONTEXT="1"))

    found = annotated.records(tmp_path)
    start, stop = (each for each in found if each.kind == span_format.KIND_BUSY)
    beacons = [each for each in found if each.kind == span_format.KIND_BEACON]
    inside = [each for each in beacons if start.end_ns <= each.start_ns <= stop.start_ns]
    assert len(inside) == 3  # at the opening, and after each of the two steps
    assert len(beacons) == 5


def test_a_thread_without_a_context_borrows_one_that_is_there(tmp_path: Path, driver: Path) -> None:
    log = tmp_path / "log"
    state = tmp_path / "state"
    annotated.run(SIX_STEPS, tmp_path, state, **cuda(driver, log))

    expected = []
    for call in ("start", "stop"):
        expected += [f"{call} 0", "retain 1", "push 1", f"{call} 1", "pop 0", "release 1"]
    assert log.read_text().splitlines() == expected
    assert annotated.notes(state) == []


def test_a_driver_that_refuses_is_noted_once(tmp_path: Path, driver: Path) -> None:
    log = tmp_path / "log"
    state = tmp_path / "state"
    done = annotated.run(SIX_STEPS, tmp_path, state, **cuda(driver, log, FAKE_CUDA_RESULT="999"))

    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert log.read_text().split() == ["start", "0"]
    why = "the profiler could not be started at step 2: cuProfilerStart failed (CUresult 999)"
    assert annotated.notes(state) == [why]
    assert rank_state.find(state, rank_state.WINDOW_FAILED) == why
    assert rank_state.find(state, rank_state.OPEN_WINDOW) is None


def test_a_missing_driver_is_noted_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    # an empty file is no library, even where a real driver is installed
    (tmp_path / "libcuda.so.1").write_text("")
    env = {"LD_LIBRARY_PATH": str(tmp_path), rank_env.WINDOW: "2-3,cuda"}
    done = annotated.run(SIX_STEPS, tmp_path, state, **env)

    assert (done.stdout, done.stderr) == ("trained\n", "")
    (note,) = annotated.notes(state)
    assert note.startswith("the profiler could not be started at step 2: cuProfilerStart cannot be")
    assert "libcuda.so.1" in note
    assert len(annotated.steps(tmp_path)) == 6


def test_the_launcher_is_told_between_the_steps(tmp_path: Path) -> None:
    state = tmp_path / "state"
    annotated.run(SIX_STEPS, tmp_path, state, **{rank_env.WINDOW: "2-3,host"})

    steps = annotated.steps(tmp_path)
    opened = int(rank_state.find(state, rank_state.OPEN_WINDOW) or 0)
    closed = int(rank_state.find(state, rank_state.CLOSE_WINDOW) or 0)
    assert steps[1].end_ns <= opened <= steps[2].start_ns
    assert steps[3].end_ns <= closed <= steps[4].start_ns
    assert annotated.notes(state) == []
    assert not [r for r in annotated.records(tmp_path) if r.kind == span_format.KIND_BUSY]


def test_a_window_that_is_over_is_forgotten(tmp_path: Path) -> None:
    code = SIX_STEPS + "print(annotate.session._session._followers)"
    more = {rank_env.WINDOW: "0-1,host", rank_env.HOOKS: "0"}  # whose guards follow to the end
    done = annotated.run(code, tmp_path, tmp_path / "state", **more)

    assert done.stdout == "trained\n[]\n"


def test_a_training_that_ends_inside_the_window_closes_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    annotated.run(SIX_STEPS, tmp_path, state, **{rank_env.WINDOW: "4-90,host"})

    closed = int(rank_state.find(state, rank_state.CLOSE_WINDOW) or 0)
    assert closed >= annotated.steps(tmp_path)[5].end_ns
    assert annotated.notes(state) == []


def test_steps_that_are_counted_in_tens_open_and_close_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = """
for number in range(0, 50, 10):
    with annotate.step(number):
        print(number, *sorted(os.listdir(os.environ["HPCPROF_STATE_FOLDER"])))
"""
    done = annotated.run(code, tmp_path, state, **{rank_env.WINDOW: "5-25,host"})

    opened, both = "window-open", "window-close window-open"
    assert done.stdout.splitlines() == [
        "0",
        f"10 {opened}",
        f"20 {opened}",
        f"30 {opened}",
        f"40 {both}",
    ]


@pytest.mark.parametrize("mode", ["host", "cuda"])
@pytest.mark.parametrize(
    ("code", "why", "failed"),
    [
        ("with annotate.step(): pass", "the training ended at 0", False),
        ("annotate.is_active()", "the training ended before its first step", False),
        ("with annotate.step(1000): pass", "the first step from 20 on was 1000", True),
    ],
)
def test_a_window_that_never_opened_says_why(
    tmp_path: Path, mode: str, code: str, why: str, failed: bool
) -> None:
    state = tmp_path / "state"
    annotated.run(code, tmp_path, state, **{rank_env.WINDOW: f"20-59,{mode}"})

    note = f"no step of 20-59 was recorded by the profiler: {why}"
    assert annotated.notes(state) == [note]
    assert rank_state.find(state, rank_state.OPEN_WINDOW) is None
    assert rank_state.find(state, rank_state.WINDOW_FAILED) == (note if failed else None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("20-59", "'20-59' has neither mode cuda nor host"),
        ("20-59,gpu", "'20-59,gpu' has neither mode cuda nor host"),
        ("59-20,host", "59-20: the last step comes before the first; write 20-59"),
        ("now,cuda", "'now' is not a range of steps; write 20-59 (both included)"),
    ],
)
def test_a_malformed_window_is_noted(tmp_path: Path, text: str, problem: str) -> None:
    state = tmp_path / "state"
    done = annotated.run(SIX_STEPS, tmp_path, state, **{rank_env.WINDOW: text})

    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert annotated.notes(state) == [
        f"no steps are recorded by the profiler: HPCPROF_WINDOW: {problem}"
    ]
