"""The C library that NVTX loads, compiled here and played to: who writes, what, in which order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.annotate import nvtx_recorder
from hpcprof.annotate.native.build_hook import compile_recorder
from hpcprof.artifacts import nvtx_format, span_format
from tests.setup import paths as tools
from tests.unit.nvtx_record import Seen, read

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

NATIVE = Path(nvtx_recorder.__file__).with_name("native")
# the process that reads the text is the training
OWN = "import os, time, threading; os.environ['HPCPROF_OWNER_PID'] = str(os.getpid())\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


class Rank:
    """The folder of a rank, and processes that play NVTX in it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library
        self.rank_folder = folder / "ranks" / "00003"
        self.rank_folder.mkdir(parents=True)
        self.record = self.rank_folder / "nvtx.bin"

    def environ(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HPCPROF_")}
        ours = {"HPCPROF_RANK_FOLDER": str(self.rank_folder), "HPCPROF_RANK": "3"}
        return {**kept, **ours, "HPCPROF_STATE_FOLDER": str(self.folder), **more}

    def play(self, text: str, *, code: int = 0, **more: str) -> str:
        """Run ``text`` with a player that is loaded before it; returns what it printed."""
        command = [sys.executable, "-m", "tests.unit.nvtx_player", str(self.library)]
        done = subprocess.run(
            command,
            input=text,
            env=self.environ(**more),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def notes(self) -> str:
        path = self.folder / "annotate-error"
        return path.read_text() if path.exists() else ""

    def seen(self) -> list[Seen]:
        return read(self.record)


@pytest.fixture
def rank(tmp_path: Path, library: Path) -> Rank:
    return Rank(tmp_path, library)


def said(rank: Rank) -> list[tuple[str | None, str, int, int]]:
    return [(one.domain, one.name, one.kind, one.value) for one in rank.seen()]


def test_every_form_of_a_range_is_recorded_with_its_domain_and_payload(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)  # the process was loaded before it was the training
tsl = player.call("DomainCreateA", b"TSL")
other = player.call("DomainCreateW", "Öther")
name = player.call("DomainRegisterStringA", tsl, b"model/dense/MatMul:MatMul")
player.push(tsl, name)
player.push(other, b"inner", 7)
player.pop(tsl)
player.pop(other)
player.pop(other)  # was never pushed
key = player.call("DomainRangeStartEx", other, player.event(b"HorovodAllreduce", 4096))
player.call("DomainRangeEnd", other, key)
player.call("DomainRangeEnd", other, key)  # is over already
player.call("RangePushA", b"plain")
player.call("RangePushW", "größer 😀")
player.call("RangePop")
player.call("RangePop")
key = player.call("RangeStartA", b"started")
player.call("RangeEnd", key)
player.push(0, b"real", 2.5)
player.pop(0)
player.call("MarkA", b"here")
player.call("DomainMarkEx", tsl, player.event(b"there", -1))
"""
    )
    push_pop, start_end, mark = nvtx_format.PUSH_POP, nvtx_format.START_END, nvtx_format.MARK
    assert said(rank) == [
        ("TSL", "model/dense/MatMul:MatMul", push_pop, 0),
        ("Öther", "inner", push_pop, 7),
        ("Öther", "HorovodAllreduce", start_end, 4096),
        (None, "größer 😀", push_pop, 0),
        (None, "plain", push_pop, 0),
        (None, "started", start_end, 0),
        (None, "real", push_pop, 2),
        (None, "here", mark, 0),
        ("TSL", "there", mark, -1),
    ]


def test_the_header_and_the_times_are_of_this_process_and_its_clock(rank: Rank) -> None:
    text = """
time.sleep(0.06)
print(os.getpid(), threading.get_native_id(), time.monotonic_ns())
player.call("RangePushA", b"slept")
time.sleep(0.05)
player.call("RangePop")
player.call("MarkA", b"now")
print(time.monotonic_ns())
"""
    pid, thread, before, after = map(int, rank.play(OWN + text).split())
    header = span_format.HEADER.unpack_from(rank.record.read_bytes())
    assert header[:4] == (nvtx_format.MAGIC, nvtx_format.VERSION, 3, pid)
    slept, now = rank.seen()
    assert before <= slept.start_ns < slept.end_ns <= now.start_ns == now.end_ns <= after
    assert slept.end_ns - slept.start_ns >= 50_000_000
    assert {slept.thread, now.thread} == {thread}
    assert rank.record.stat().st_mode & 0o777 == 0o600


def test_only_the_training_writes(rank: Rank) -> None:
    mark = "player.call('MarkA', b'x'); print(player.is_attached)"
    # nobody is the training yet; a data worker of a living one; one whose owner has died
    assert rank.play(mark) == "True\n"
    assert rank.play(mark, HPCPROF_OWNER_PID=str(os.getpid())) == "False\n"
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert rank.play(mark, HPCPROF_OWNER_PID=str(dead.pid)) == "True\n"
    assert not rank.record.exists()
    assert rank.notes() == ""
    assert rank.play(mark, HPCPROF_RANK_FOLDER="") == "False\n"
    assert rank.play(mark, HPCPROF_RANK="first") == "False\n"


def test_events_from_before_the_training_is_known_are_left_out(rank: Rank) -> None:
    rank.play(
        """
import os, time
player.call("RangePushA", b"before")
os.environ["HPCPROF_OWNER_PID"] = str(os.getpid())
time.sleep(0.06)
player.call("RangePushA", b"after")
player.call("RangePop")
player.call("RangePop")
"""
    )
    assert [one.name for one in rank.seen()] == ["after"]


def test_a_second_process_of_the_rank_leaves_the_record_alone(rank: Rank) -> None:
    mark = OWN + "time.sleep(0.06); player.call('MarkA', b'one')"
    rank.play(mark)
    before = rank.record.read_bytes()
    rank.play(mark)
    assert rank.record.read_bytes() == before
    assert rank.notes() == f"NVTX ranges were not recorded: File exists ({rank.record})\n"


def test_a_forked_child_never_writes(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
player.call("MarkA", b"parent")
if os.fork() == 0:
    # it takes no part any more: a lock that it looks for may have been held at the fork
    handle = player.call("DomainCreateA", b"of the child")
    player.call("MarkA", b"child")
    player.flush()
    os._exit(handle is not None)
assert os.wait()[1] == 0
player.call("MarkA", b"parent again")
"""
    )
    assert [one.name for one in rank.seen()] == ["parent", "parent again"]


def test_what_was_recorded_up_to_the_last_step_survives_a_kill(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
player.call("MarkA", b"in the step")
player.flush()
player.call("MarkA", b"after it")
os.kill(os.getpid(), 9)
""",
        code=-9,
    )
    assert [one.name for one in rank.seen()] == ["in the step"]


def test_ranges_are_written_without_a_step_after_a_fifth_of_a_second(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
player.call("MarkA", b"first")
time.sleep(0.25)
player.call("MarkA", b"second")
player.call("MarkA", b"third")
os._exit(0)
"""
    )
    assert [one.name for one in rank.seen()] == ["first", "second"]


def test_many_threads_lose_nothing_and_names_come_first(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
domain = player.call("DomainCreateA", b"TSL")
def work(number):
    for each in range(1500):
        player.push(domain, b"op %d" % (each % 300 if number % 2 else each))
        player.push(domain, b"inner")
        player.pop(domain)
        player.pop(domain)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for one in threads: one.start()
for one in threads: one.join()
"""
    )
    seen = rank.seen()  # asserts the order of names
    by_thread: dict[int, list[Seen]] = {}
    for one in seen:
        by_thread.setdefault(one.thread, []).append(one)
    assert [len(ranges) for ranges in by_thread.values()] == [3000] * 8
    for ranges in by_thread.values():
        assert [one.end_ns for one in ranges] == sorted(one.end_ns for one in ranges)
    assert rank.notes() == ""


def test_ranges_that_nest_too_deep_are_counted_out(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
domain, other = player.call("DomainCreateA", b"deep"), player.call("DomainCreateA", b"other")
for depth in range(100):
    player.push(domain, b"%d" % depth)
player.push(other, b"over it")
player.pop(other)
for depth in range(100):
    player.pop(domain)
player.push(domain, b"again")
player.pop(domain)
"""
    )
    assert [one.name for one in rank.seen()] == [*map(str, reversed(range(64))), "again"]
    assert rank.notes().startswith("37 NVTX ranges were left out: nested too deep")


def test_ranges_that_never_end_cost_no_more_than_their_places(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
keys = [player.call("RangeStartA", b"kept") for _ in range(16384)]
assert 0 not in keys and len(set(keys)) == 16384
assert player.call("RangeStartA", b"too many") == 0
player.call("RangeEnd", 0)
player.call("RangeEnd", keys[5])
for _ in range(64 * 300):
    late = player.call("RangeStartA", b"late") or 0
    if late: break
player.call("RangeEnd", late)
"""
    )
    assert [one.name for one in rank.seen()] == ["kept", "late"]
    assert "NVTX ranges were left out" in rank.notes()


def test_names_beyond_the_table_share_one_name(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
for number in range(70000):
    player.call("MarkA", b"name %d" % number)
player.call("MarkA", b"name 5")
"""
    )
    seen = [one.name for one in rank.seen()]
    assert len(seen) == 70001
    assert seen[:65535] == [f"name {number}" for number in range(65535)]
    assert set(seen[65535:70000]) == {"more names"}
    assert seen[-1] == "name 5"


def test_a_long_name_is_cut_between_two_characters(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
player.call("MarkA", ("x" + "é" * 3000).encode())
player.call("MarkA", b"")
"""
    )
    long, empty = rank.seen()
    assert long.name == "x" + "é" * 999
    assert empty.name == ""


def test_a_full_disk_ends_the_recording_and_not_the_training(rank: Rank) -> None:
    text = """
import resource, time
time.sleep(0.06)
player.call("MarkA", b"x")
player.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))  # Python ignores SIGXFSZ
for number in range(5000):
    player.call("MarkA", b"x")
player.flush()
player.call("MarkA", b"x")
print("trained")
"""
    assert rank.play(OWN + text) == "trained\n"
    assert rank.record.stat().st_size <= 400
    reason = f"recording of NVTX ranges stopped: File too large ({rank.record})\n"
    assert rank.notes() == reason


# in front of the C library's: a write to nvtx.bin hangs as long as the file "hang" is there
_HANGING_WRITE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t write(int file, const void *data, size_t bytes) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    readlink(link, path, sizeof path - 1);
    while (strstr(path, "nvtx.bin") && !access("HANG", F_OK)) usleep(1000);
    return real(file, data, bytes);
}
"""


def test_a_disk_that_hangs_keeps_the_thread_that_writes_and_no_other(rank: Rank) -> None:
    hang = rank.folder / "hang"
    text = _HANGING_WRITE.replace("HANG", str(hang))
    preloaded = compiled(rank.folder, "hanging.so", text, "-shared", "-fPIC")
    said = rank.play(
        OWN
        + f"""
time.sleep(0.06)
player.call("MarkA", b"before")
open({str(hang)!r}, "w").close()
writer = threading.Thread(target=player.flush)
writer.start()
time.sleep(0.1)
player.flush()  # a step ends
for _ in range(5000):
    player.call("MarkA", b"meanwhile")
print("writer hangs:", writer.is_alive())
os.unlink({str(hang)!r})
writer.join()
player.call("MarkA", b"after")
""",
        LD_PRELOAD=str(preloaded),
    )
    assert said == "writer hangs: True\n"
    names = [one.name for one in rank.seen()]
    assert (names[0], names[-1]) == ("before", "after")
    kept = names.count("meanwhile")
    assert 0 < kept < 5000
    assert rank.notes().startswith(f"{5000 - kept} NVTX ranges were left out: ")


def test_a_folder_that_cannot_be_written_is_one_note(rank: Rank) -> None:
    text = OWN + "time.sleep(0.06)\nfor _ in range(9): player.call('MarkA', b'x')"
    missing = rank.folder / "gone"
    rank.play(text, HPCPROF_RANK_FOLDER=str(missing))
    reason = f"NVTX ranges were not recorded: No such file or directory ({missing}/nvtx.bin)\n"
    assert rank.notes() == reason


def test_a_domain_that_must_not_be_heard_gets_no_handle(rank: Rank) -> None:
    text = """
print(player.call("DomainCreateA", b"TSL"), player.call("DomainCreateA", b"HorovodOps") > 0)
"""
    assert rank.play(OWN + text, HPCPROF_NVTX_WITHOUT="TSL") == "None True\n"


def test_flushing_from_python_reaches_the_library_that_nvtx_loaded(rank: Rank) -> None:
    rank.play(
        OWN
        + """
time.sleep(0.06)
from hpcprof.annotate import nvtx_recorder
assert nvtx_recorder.is_ours()
flush = nvtx_recorder.flusher()
player.call("MarkA", b"kept")
flush()
os._exit(0)
""",
        NVTX_INJECTION64_PATH=str(rank.library),
    )
    assert [one.name for one in rank.seen()] == ["kept"]


def test_without_our_recorder_there_is_nothing_to_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCPROF_STATE_FOLDER", str(tmp_path))
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert nvtx_recorder.flusher() is None
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    assert (nvtx_recorder.is_ours(), nvtx_recorder.flusher()) == (False, None)
    assert not (tmp_path / "annotate-error").exists()
    broken = tmp_path / nvtx_format.LIBRARY
    broken.write_text("no library")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(broken))
    assert (nvtx_recorder.is_ours(), nvtx_recorder.flusher()) == (True, None)
    assert "the recorder cannot be loaded" in (tmp_path / "annotate-error").read_text()


# printed twice: once as we have written NVTX's interface down, once as its header has it
_ABI = r"""
#include <stdio.h>
#include INCLUDED
#define SHOW(value) printf(#value " %zu\n", (size_t)(value))
#define AT(member) SHOW(offsetof(nvtxEventAttributes_t, member))
int main(void) {
    SHOW(sizeof(nvtxEventAttributes_t)); SHOW(sizeof(NvtxExportTableCallbacks));
    SHOW(offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));
    AT(version); AT(size); AT(payloadType); AT(payload); AT(messageType); AT(message);
    SHOW(sizeof(nvtxDomainHandle_t)); SHOW(sizeof(nvtxStringHandle_t)); SHOW(sizeof(nvtxRangeId_t));
    CONSTANTS
}
"""
_CONSTANTS = (
    *("NVTX_MESSAGE_UNKNOWN", "NVTX_MESSAGE_TYPE_ASCII", "NVTX_MESSAGE_TYPE_UNICODE"),
    *("NVTX_MESSAGE_TYPE_REGISTERED", "NVTX_PAYLOAD_UNKNOWN", "NVTX_PAYLOAD_TYPE_UNSIGNED_INT64"),
    *("NVTX_PAYLOAD_TYPE_INT64", "NVTX_PAYLOAD_TYPE_DOUBLE", "NVTX_PAYLOAD_TYPE_UNSIGNED_INT32"),
    *("NVTX_PAYLOAD_TYPE_INT32", "NVTX_PAYLOAD_TYPE_FLOAT", "NVTX_ETID_CALLBACKS"),
    *("NVTX_CB_MODULE_CORE", "NVTX_CB_MODULE_CORE2"),
    *(f"NVTX_CBID_CORE_{name}" for name in ("MarkEx", "MarkA", "MarkW", "RangeStartEx")),
    *(f"NVTX_CBID_CORE_{name}" for name in ("RangeStartA", "RangeStartW", "RangeEnd")),
    *(f"NVTX_CBID_CORE_{name}" for name in ("RangePushEx", "RangePushA", "RangePushW", "RangePop")),
    *(f"NVTX_CBID_CORE2_Domain{name}" for name in ("MarkEx", "RangeStartEx", "RangeEnd")),
    *(f"NVTX_CBID_CORE2_Domain{name}" for name in ("RangePushEx", "RangePop", "RegisterStringA")),
    *(f"NVTX_CBID_CORE2_Domain{name}" for name in ("RegisterStringW", "CreateA", "CreateW")),
)

# ranges of two domains and threads through NVIDIA's own client code
_CLIENT = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <nvtx3/nvToolsExt.h>
static void *work(void *domain) {
    nvtxEventAttributes_t event = {0};
    event.version = NVTX_VERSION; event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "registered");
    nvtxDomainRangePushEx(domain, &event);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE; event.message.unicode = L"wide";
    event.payloadType = NVTX_PAYLOAD_TYPE_INT32; event.payload.iValue = -5;
    nvtxRangeId_t id = nvtxDomainRangeStartEx(domain, &event);
    nvtxDomainRangeEnd(domain, id);
    nvtxDomainRangePop(domain);
    return NULL;
}
int main(void) {
    char pid[32]; pthread_t thread;
    snprintf(pid, sizeof pid, "%d", getpid()); setenv("HPCPROF_OWNER_PID", pid, 1);
    nvtxDomainHandle_t domain = nvtxDomainCreateA("real");
    nvtxRangePushA("default");
    work(domain);
    pthread_create(&thread, NULL, work, domain); pthread_join(thread, NULL);
    nvtxMarkW(L"mark");
    nvtxRangePop();
    return 0;
}
"""


@pytest.fixture(scope="session")
def nvtx_include() -> Path:
    """Folder of NVIDIA's own header, as nsys brings it."""
    nsys = tools.nsys()
    if nsys is not None:
        for folder in nsys.parents[1].glob("target-linux-*/nvtx/include"):
            return folder
    pytest.skip("no header of NVTX (it comes with nsys)")


def compiled(folder: Path, name: str, text: str, *options: str) -> Path:
    source = folder / f"{name}.c"
    source.write_text(text)
    program = folder / name
    command = ["cc", "-w", *options, "-o", str(program), str(source), "-ldl", "-pthread"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return program


def test_the_interface_is_nvtxs_own(tmp_path: Path, nvtx_include: Path) -> None:
    text = _ABI.replace("CONSTANTS", " ".join(f"SHOW({name});" for name in _CONSTANTS))
    printed = []
    for name, folder, header in (
        ("ours", NATIVE, '"nvtx_abi.h"'),
        ("theirs", nvtx_include, "<nvtx3/nvToolsExt.h>"),
    ):
        program = compiled(tmp_path, name, text, f"-I{folder}", f"-DINCLUDED={header}")
        printed.append(subprocess.run([program], capture_output=True, check=True).stdout)
    assert printed[0] == printed[1]
    assert printed[0].count(b"\n") == 12 + len(_CONSTANTS)


def test_nvidias_own_client_is_recorded(rank: Rank, nvtx_include: Path) -> None:
    program = compiled(rank.folder, "client", _CLIENT, f"-I{nvtx_include}")
    environ = rank.environ(NVTX_INJECTION64_PATH=str(rank.library))
    subprocess.run([program], env=environ, check=True, timeout=30)
    once = [("real", "wide", nvtx_format.START_END, -5)]
    once.append(("real", "registered", nvtx_format.PUSH_POP, 0))
    plain = [(None, "mark", nvtx_format.MARK, 0), (None, "default", nvtx_format.PUSH_POP, 0)]
    # threads have buffers of their own
    assert sorted(said(rank), key=str) == sorted([*once, *once, *plain], key=str)


def test_it_runs_with_the_c_library_of_old_systems(library: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf")
    done = subprocess.run([readelf, "-W", "--dyn-syms", library], capture_output=True, text=True)
    words = done.stdout.replace("(", " ").split()
    needed = {word.partition("@GLIBC_")[2] for word in words if "@GLIBC_" in word}
    numbers = [tuple(map(int, text.split("."))) for text in needed]
    assert (2, 2, 5) in numbers
    assert max(numbers) <= (2, 17)  # RHEL 7, and manylinux2014


def test_no_symbol_but_two_is_seen_by_the_training(library: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    done = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert names == {"InitializeInjectionNvtx2", "hpcprof_nvtx_flush"}
