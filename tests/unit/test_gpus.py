"""Which GPUs a rank sees: CUDA's rules, and an NVML that answers, refuses, hangs or crashes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcprof.launch import gpus, processes
from hpcprof.launch.gpus import Gpu
from hpcprof.launch.processes import Fate
from hpcprof.launch.signals import SignalInbox
from tests.unit import launching

pytestmark = pytest.mark.unit

# NVML with four GPUs, listed against the order of the bus; FAKE_NVML says how it behaves
FAKE_NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int is(const char *what) {
    const char *mode = getenv("FAKE_NVML");
    return mode != 0 && strcmp(mode, what) == 0;
}
static unsigned number(void *handle) { return (unsigned)(size_t)handle - 1; }
int nvmlInit_v2(void) {
    if (is("hang")) for (;;) pause();
    if (is("crash")) abort();
    return is("no driver") ? 9 : 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = is("none") ? 0 : 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (is("cgroup") && index != 2) return 4;
    if (is("lost") && index == 1) return 15;
    *handle = (void *)(size_t)(index + 1);
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "GPU-%c0000000-1111", "dcba"[number(handle)]);
    return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    snprintf(text, size, is("unequal") && number(handle) == 3 ? "T4" : "A100");
    return 0;
}
struct place { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *handle, struct place *place) {
    memset(place, 0, sizeof *place);
    snprintf(place->bus_id, 32, "00000000:%02X:00.0", 0x40 - 0x10 * number(handle));
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    *current = *pending = is("mig");
    return 0;
}
"""
A, B, C, D = (f"GPU-{letter}0000000-1111" for letter in "abcd")
NODE = [
    Gpu(A, "A100", "00000000:10:00.0", False),
    Gpu(B, "A100", "00000000:20:00.0", False),
    Gpu(C, "A100", "00000000:30:00.0", False),
    Gpu(D, "A100", "00000000:40:00.0", False),
]
UNEQUAL = [NODE[0]._replace(name="T4"), *NODE[1:]]
SPLIT = [NODE[0]._replace(is_split=True), *NODE[1:]]


def uuids(visible: str | None, node: list[Gpu] = NODE, **more: str) -> list[str | None] | None:
    """UUIDs in CUDA's order; checks that they are numbered from 0."""
    environ = {**more, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    shown = gpus.seen(environ, node)
    if shown is None:
        return None
    assert [one["visible"] for one in shown] == list(range(len(shown)))
    return [one["uuid"] for one in shown]


def test_without_a_choice_all_gpus_are_seen_in_the_order_of_the_bus() -> None:
    assert uuids(None, NODE[::-1]) == [A, B, C, D]
    assert gpus.seen({}, NODE)[1] == {  # type: ignore[index]
        "visible": 1,
        "uuid": B,
        "name": "A100",
        "pci_bus": "00000000:20:00.0",
    }
    assert uuids(None, []) == []


@pytest.mark.parametrize("nothing", ["", "-1", "NoDevFiles", "4", "-1,0"])
def test_an_entry_that_cuda_cannot_use_hides_every_gpu_behind_it(nothing: str) -> None:
    assert uuids(nothing) == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2", [C]),
        ("3,1", [D, B]),
        (" 0, 2", [A, C]),
        ("1,-1,2", [B]),
        ("1,7,2", [B]),
        (C, [C]),
        ("GPU-d,GPU-a0000", [D, A]),
        ("GPU-", []),
        ("GPU-e,0", []),
        ("MIG-1234/5/0", ["MIG-1234/5/0"]),
    ],
)
def test_numbers_and_beginnings_of_uuids_are_looked_up(visible: str, expected: list[str]) -> None:
    assert uuids(visible) == expected


def test_a_gpu_given_twice_is_not_guessed_at() -> None:
    assert uuids("1,1") is None
    assert uuids("0,GPU-a") is None


def test_numbers_of_unequal_gpus_are_unknown_and_not_wrong() -> None:
    assert uuids("0,3", UNEQUAL) == [None, None]
    assert uuids("0,4", UNEQUAL) == [None]
    assert uuids(None, UNEQUAL) == [None] * 4
    assert uuids("GPU-a,1", UNEQUAL) == [A, None]
    assert uuids("0,3", UNEQUAL, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [A, D]


def test_numbers_of_a_node_with_mig_are_unknown() -> None:
    assert uuids("0,9", SPLIT) == [None, None]
    assert uuids(None, SPLIT) is None
    assert uuids("MIG-1234", SPLIT) == ["MIG-1234"]
    assert uuids(B, SPLIT) == [B]


def test_a_node_without_gpus_starts_no_child(
    tmp_path: Path, inbox: SignalInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_DEVICE_FILES", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setattr(gpus, "_LIBRARY_FOLDERS", (str(tmp_path / "lib"),))
    assert gpus.start(tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)}, inbox) is None
    assert gpus.result(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", '{"uuid": 1}', "null"])
def test_an_answer_that_is_none_is_not_taken_for_no_gpus(tmp_path: Path, text: str) -> None:
    (tmp_path / gpus.ANSWER).write_text(text)
    assert gpus.result(tmp_path) is None


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    opened = SignalInbox()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a libnvidia-ml.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make an NVML with")
    folder = tmp_path_factory.mktemp("nvml")
    source = folder / "nvml.c"
    source.write_text(FAKE_NVML)
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    return folder


class Question:
    """A child that asks the fake NVML."""

    def __init__(self, library: Path, state: Path, inbox: SignalInbox, mode: str) -> None:
        environ = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": mode}
        pid = gpus.start(state, environ, inbox)
        assert pid is not None
        self.pid = pid

    def fate(self) -> Fate:
        """How it ended."""
        found: list[Fate] = []

        def has_ended() -> bool:
            fate = processes.reap(self.pid)
            found.extend([fate] if fate else [])
            return bool(found)

        launching.wait_until(has_ended)
        return found[0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("good", [A, B, C, D]),
        ("cgroup", [B]),
        ("none", []),
        ("unequal", [None] * 4),
    ],
)
def test_nvml_is_asked_in_a_child(
    library: Path, tmp_path: Path, inbox: SignalInbox, mode: str, expected: list[str | None]
) -> None:
    assert Question(library, tmp_path, inbox, mode).fate() == Fate(0)
    shown = gpus.result(tmp_path)
    assert shown is not None
    assert [one["uuid"] for one in shown] == expected
    if mode == "cgroup":
        assert shown[0]["pci_bus"] == "00000000:20:00.0"
    assert [path.name for path in tmp_path.iterdir()] == [gpus.ANSWER]


@pytest.mark.parametrize(
    ("mode", "fate"),
    [
        ("no driver", Fate(1)),
        ("lost", Fate(1)),
        ("crash", Fate(128 + signal.SIGABRT, signal.SIGABRT)),
        ("mig", Fate(0)),
    ],
)
def test_what_cannot_be_read_is_none(
    library: Path, tmp_path: Path, inbox: SignalInbox, mode: str, fate: Fate
) -> None:
    assert Question(library, tmp_path, inbox, mode).fate() == fate
    assert gpus.result(tmp_path) is None


def test_a_driver_that_hangs_leaves_the_answer_open_and_no_process(
    library: Path, tmp_path: Path, inbox: SignalInbox
) -> None:
    question = Question(library, tmp_path, inbox, "hang")
    # asleep in the library: the alarm that ends it has been set by then
    launching.wait_until(lambda: "libnvidia-ml" in Path(f"/proc/{question.pid}/maps").read_text())
    assert processes.reap(question.pid) is None
    assert gpus.result(tmp_path) is None
    os.kill(question.pid, signal.SIGALRM)  # as a minute later
    assert question.fate() == Fate(128 + signal.SIGALRM, signal.SIGALRM)


def test_the_child_keeps_no_descriptor_of_the_launcher(
    library: Path, tmp_path: Path, inbox: SignalInbox
) -> None:
    """srun sees the end of a task when its PMI descriptor is closed."""
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    question = Question(library, tmp_path, inbox, "hang")
    os.close(write_end)
    assert os.read(read_end, 1) == b""  # would wait for ever
    os.close(read_end)
    os.kill(question.pid, signal.SIGKILL)
    assert question.fate().signum == signal.SIGKILL


def test_an_answer_is_json_that_other_programs_read(
    library: Path, tmp_path: Path, inbox: SignalInbox
) -> None:
    Question(library, tmp_path, inbox, "cgroup").fate()
    assert json.loads((tmp_path / "gpus.json").read_text()) == [
        {"visible": 0, "uuid": B, "name": "A100", "pci_bus": "00000000:20:00.0"}
    ]
