"""What the node agent samples: against the real /proc, real child processes and real files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcprof.artifacts import manifest, node_records, node_time
from hpcprof.artifacts.atomic import write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.agent import canary, samples
from hpcprof.launch.agent.canary import Canary, first_files, timed_read
from hpcprof.launch.agent.ranks import RankCounters, descendants, read_stat, tree_counters
from hpcprof.launch.agent.samples import Sampler

pytestmark = pytest.mark.unit

NODE = "gpu-2"
PATIENCE_SECONDS = 30.0  # for a loaded machine; nothing is measured with it


class Clock:
    """A CLOCK_MONOTONIC that stands still until it is set forward."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    still = Clock()
    monkeypatch.setattr(node_time, "monotonic_ns", still)
    return still


# ---- the sample as a whole


def patterns(names: Any) -> str:
    return "|".join(re.sub("<.>", ".+", name) for name in names)


def test_a_sample_is_a_record_of_the_contract(tmp_path: Path) -> None:
    sampler = Sampler(ArtifactPaths(tmp_path), NODE, None)
    before = node_time.monotonic_ns()
    record = sampler.sample()
    assert before <= record["monotonic_ns"] <= node_time.monotonic_ns()
    assert json.loads(json.dumps(record)) == record
    assert (record["kind"], record["ranks"]) == (node_records.SAMPLE, {})
    allowed = re.compile(patterns(node_records.COUNTERS))
    assert [name for name in record["counters"] if not allowed.fullmatch(name)] == []
    assert all(math.isfinite(value) for value in record["counters"].values())
    assert record["counters"]["memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < record["counters"]["memory_used_bytes"] < psutil.virtual_memory().total
    assert sampler.problems == []


def test_processor_time_is_absent_until_there_is_an_interval(tmp_path: Path) -> None:
    sampler = Sampler(ArtifactPaths(tmp_path), NODE, None)
    assert "cpu_busy_frac" not in sampler.sample()["counters"]
    burn = time.process_time() + 0.1  # of at least this much time the node was busy
    while time.process_time() < burn:
        pass
    assert 0.0 < sampler.sample()["counters"]["cpu_busy_frac"] <= 1.0


def test_pressure_and_retransmissions_are_those_of_proc(tmp_path: Path) -> None:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel does not measure pressure")

    def total() -> int:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2])

    before, record = total(), Sampler(ArtifactPaths(tmp_path), NODE, None).sample()
    assert before <= record["counters"]["pressure_cpu_some_us"] <= total()
    assert record["counters"]["tcp_retransmitted_segments"] >= 0


def test_traffic_is_counted_by_interface_without_the_loopback() -> None:
    counters = samples.network()
    real = psutil.net_io_counters(pernic=True)
    names = {name[4 : -len("_sent_bytes")] for name in counters if name.endswith("_sent_bytes")}
    assert "lo" not in names
    assert names <= set(real)
    for name in names:
        assert 0 <= counters[f"net_{name}_received_bytes"] <= real[name].bytes_recv


def test_a_part_that_fails_is_left_out_and_told_once(tmp_path: Path) -> None:
    paths = ArtifactPaths(tmp_path)
    paths.ranks.write_text("a file where a folder should be")
    sampler = Sampler(paths, NODE, None)
    records = [sampler.sample(), sampler.sample()]
    assert [record["ranks"] for record in records] == [{}, {}]
    assert records[1]["counters"]["memory_total_bytes"] > 0
    assert [text.split(":")[0] for text in sampler.problems] == ["ranks"]


def test_without_psutil_the_rest_is_sampled_and_the_lack_is_said(tmp_path: Path) -> None:
    code = (
        "import sys, json; sys.modules['psutil'] = None\n"
        "from hpcprof.artifacts.paths import ArtifactPaths\n"
        "from hpcprof.launch.agent.samples import Sampler\n"
        f"s = Sampler(ArtifactPaths({str(tmp_path)!r}), 'n', None); s.sample()\n"
        "print(json.dumps([s.sample(), s.facts(), s.problems]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    record, facts, problems = json.loads(done.stdout)
    missing = ("cpu_busy", "memory_", "net_", "swap_")
    assert [name for name in record["counters"] if name.startswith(missing)] == []
    assert "tcp_retransmitted_segments" in record["counters"]
    assert (facts["psutil"], facts["cpus"]) == (None, os.cpu_count())
    assert problems == ["psutil is not installed: no processor, memory, network counters"]


def test_facts_name_the_node_and_the_file_system_of_the_data_set(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    facts = Sampler(ArtifactPaths(tmp_path), NODE, str(link)).facts()
    assert (facts["node"], facts["cpus"], facts["data_dir"]) == (NODE, os.cpu_count(), str(link))
    assert facts["memory_bytes"] == psutil.virtual_memory().total
    assert facts["kernel"] == os.uname().release
    mount = Path(facts["data_filesystem"]["mount"])
    assert mount in (tmp_path.resolve(), *tmp_path.resolve().parents)
    assert mount.is_mount()


# ---- texts of the kernel

MOUNTSTATS = """\
device proc mounted on /proc with fstype proc
device /dev/sda1 mounted on / with fstype ext4
\tREAD: 9 9 9 9 9 9 9 9
device srv:/export/home mounted on /home with fstype nfs statvers=1.1
\topts:\trw,vers=3,rsize=1048576,wsize=1048576,proto=tcp,timeo=600,retrans=2,sec=sys
\tage:\t159
\tcaps:\tcaps=0xf,wtmult=4096,dtsize=1048576,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t0 0 0 0 2 1 7 1 0 1 0 1 0 0 3 0 0 2 0 0 1 0 0 0 0 0 0
\tbytes:\t15 15 0 0 15 15 1 1
\tRPC iostats version: 1.1  p/v: 100003/3 (nfs)
\txprt:\ttcp 795 1 2 0 2 15 15 0 15 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t     GETATTR: 2 2 0 208 224 0 0 0 0
\t        READ: 101 102 1 12400 6710886 14 303 320 0
\t       WRITE: 1 1 0 148 136 0 14 14 0
device srv2:/data mounted on /data/image\\040net with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576
\tper-op statistics
\t        READ: 5 5 0 900 4000 1 20 30 0
\t   READ_PLUS: 7 7 0 900 6000 2 50 60 0
\t     READDIR: 8 8 8 8 8 8 8 8 8
device srv3:/idle mounted on /idle with fstype nfs4 statvers=1.1
\tper-op statistics
\t        READ: 0 0 0 0 0 0 0 0
device srv4:/new mounted on /new with fstype nfs4 statvers=1.1
device tmpfs mounted on /dev/shm with fstype tmpfs
"""


def test_reads_of_nfs_mounts_are_taken_from_mountstats() -> None:
    assert samples.parse_mountstats(MOUNTSTATS) == {
        "nfs_/home_read_ops": 101,
        "nfs_/home_read_bytes": 6710886,
        "nfs_/home_read_rtt_ms": 303,
        "nfs_/home_read_execute_ms": 320,
        "nfs_/data/image net_read_ops": 12,
        "nfs_/data/image net_read_bytes": 10_000,
        "nfs_/data/image net_read_rtt_ms": 70,
        "nfs_/data/image net_read_execute_ms": 90,
        "nfs_/idle_read_ops": 0,
        "nfs_/idle_read_bytes": 0,
        "nfs_/idle_read_rtt_ms": 0,
        "nfs_/idle_read_execute_ms": 0,
    }


def test_a_mount_over_another_counts_alone() -> None:
    mount = "device s:/{} mounted on /m with fstype nfs statvers=1.1\n\tREAD: {} 0 0 0 1 0 2 3\n"
    got = samples.parse_mountstats(mount.format("a", 10) + mount.format("b", 4))
    assert got["nfs_/m_read_ops"] == 4


def test_mounts_of_this_machine_can_be_read() -> None:
    names = samples.nfs()
    assert all(name.startswith("nfs_/") for name in names)


def test_retransmissions_are_found_by_the_name_of_their_column() -> None:
    snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin OutSegs RetransSegs InErrs\nTcp: 200 900 61 0\n"
    assert samples.parse_tcp(snmp) == {"tcp_retransmitted_segments": 61}


def test_the_file_system_is_that_of_the_longest_mount_and_the_last_of_several() -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\nauto /data autofs rw 0 0\nsrv:/x /data nfs4 rw 0 0\n"
        "tmpfs /data\\0402 tmpfs rw 0 0\n"
    )
    found = samples.filesystem_of("/data/train", mounts)
    assert found == {"type": "nfs4", "mount": "/data", "source": "srv:/x"}
    assert samples.filesystem_of("/database", mounts)["mount"] == "/"
    assert samples.filesystem_of("/data 2/x", mounts)["type"] == "tmpfs"
    assert samples.filesystem_of("/data", "") == {}


# ---- ranks

READ_BYTES = 300_000
BURNT_NS = 50_000_000
# on each line it is sent: some processor time, one read of a file, an answer
APPLICATION = """
import os, sys, time
while os.read(0, 2):
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    os.read(descriptor, 300_000)
    os.close(descriptor)
    os.write(1, b"done\\n")
"""
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


@contextlib.contextmanager
def started(argv: list[str], **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env={**os.environ, **environ})
    try:
        yield child
    finally:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()  # the end of its input ends the application, and so its parents
        child.wait(PATIENCE_SECONDS)
        child.stdout.close()


def let_read(child: subprocess.Popen[bytes]) -> None:
    """Have the application read once, and wait until it has."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"x\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"done\n"


@pytest.fixture
def application(tmp_path: Path) -> list[str]:
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(READ_BYTES))
    return [sys.executable, "-S", "-E", "-c", APPLICATION, str(data)]


def write_manifest(paths: ArtifactPaths, rank: int, pid: int | None, **fields: Any) -> None:
    identity = {"rank": rank, "local_rank": 0, "world_size": 9, "node": NODE}
    content = {**manifest.new_manifest(identity, ["train"]), "launcher_pid": pid}
    paths.rank_folder(rank).mkdir(parents=True)
    write_json(paths.manifest(rank), {**content, **fields})


def test_a_rank_counts_what_its_application_reads(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    paths = ArtifactPaths(tmp_path / "run")
    with started([sys.executable, "-c", LAUNCHER, *application]) as launcher:
        let_read(launcher)
        write_manifest(paths, 3, launcher.pid)
        counters = RankCounters(paths, NODE)
        before = counters.read()["3"]
        let_read(launcher)
        after = counters.read()["3"]
    assert set(after) == set(node_records.RANK_COUNTERS)
    grown = {name: after[name] - before[name] for name in ("rchar_bytes", "syscr")}
    assert grown == {"rchar_bytes": READ_BYTES + 2, "syscr": 2}  # and two bytes of its input
    assert after["wchar_bytes"] >= len(b"done\n")
    assert after["threads"] == 1  # the launcher is not the training
    assert after["rss_bytes"] > 1_000_000
    # user and system time are each told in whole ticks of 10 ms
    assert after["cpu_ns"] - before["cpu_ns"] >= BURNT_NS - 20_000_000


def test_what_an_ended_child_has_read_still_counts(tmp_path: Path, clock: Clock) -> None:
    code = (
        "import os, subprocess, sys; os.read(0, 2); "
        "subprocess.call(['cat', sys.argv[1]], stdout=subprocess.DEVNULL); "
        "os.write(1, b'done\\n'); os.read(0, 2)"
    )
    paths = ArtifactPaths(tmp_path / "run")
    large = tmp_path / "large"
    large.write_bytes(bytes(5_000_000))  # more than Python reads to start
    command = [sys.executable, "-S", "-E", "-c", code, str(large)]
    with started([sys.executable, "-c", LAUNCHER, *command]) as launcher:
        let_read(launcher)
        write_manifest(paths, 0, launcher.pid)
        got = RankCounters(paths, NODE).read()["0"]
    assert got["threads"] == 1  # the child is gone
    assert 5_000_000 <= got["rchar_bytes"] < 10_000_000


def test_nsys_between_launcher_and_application_is_not_counted(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/sh\n"$@"\nexit\n')
    nsys.chmod(0o755)
    paths = ArtifactPaths(tmp_path / "run")
    with started([sys.executable, "-c", LAUNCHER, str(nsys), *application]) as launcher:
        let_read(launcher)
        write_manifest(paths, 0, launcher.pid)
        got = RankCounters(paths, NODE).read()["0"]
    assert got["threads"] == 1


def test_an_application_that_a_daemon_started_is_found_by_its_environment(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\nread line\necho done\nread line\n")
    nsys.chmod(0o755)
    paths = ArtifactPaths(tmp_path / "run")
    folder = str(paths.rank_folder(0))
    with (
        started([sys.executable, "-c", LAUNCHER, str(nsys)]) as launcher,
        started(application, HPCPROF_RANK_FOLDER=folder) as training,
        started(application, HPCPROF_RANK_FOLDER=folder, HPCPROF_NSYS_ATTEMPT="1") as shim,
    ):
        for child in (launcher, training, shim):
            let_read(child)
        write_manifest(paths, 0, launcher.pid)
        counters = RankCounters(paths, NODE)
        before = counters.read()["0"]
        let_read(shim)
        let_read(training)
        after = counters.read()["0"]
    assert after["rchar_bytes"] - before["rchar_bytes"] == READ_BYTES + 2


def test_a_rank_is_absent_before_its_manifest_and_after_its_end(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    paths = ArtifactPaths(tmp_path / "run")
    counters = RankCounters(paths, NODE)
    assert counters.read() == {}
    with started([sys.executable, "-c", LAUNCHER, *application]) as launcher:
        let_read(launcher)
        write_manifest(paths, 4, launcher.pid)
        assert counters.read() == {}  # the run folder is not looked at again so soon
        clock.forward(6)
        assert list(counters.read()) == ["4"]
    assert counters.read() == {}
    clock.forward(60)
    assert counters.read() == {}


def test_an_application_that_starts_later_than_its_launcher_is_found(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    late = "import os, sys, subprocess; os.read(0, 2); os.write(1, b'done\\n'); "
    paths = ArtifactPaths(tmp_path / "run")
    argv = [sys.executable, "-c", late + LAUNCHER.partition("; ")[2], *application]
    with started(argv) as launcher:
        write_manifest(paths, 1, launcher.pid)
        counters = RankCounters(paths, NODE)
        assert counters.read() == {}
        let_read(launcher)
        let_read(launcher)
        clock.forward(2)
        assert list(counters.read()) == ["1"]


def test_ranks_of_other_nodes_ended_ones_and_damaged_manifests_are_not_counted(
    tmp_path: Path, application: list[str], clock: Clock
) -> None:
    paths = ArtifactPaths(tmp_path / "run")
    with started([sys.executable, "-c", LAUNCHER, *application]) as launcher:
        let_read(launcher)
        write_manifest(paths, 0, launcher.pid, node="gpu-9")
        write_manifest(paths, 1, launcher.pid, ended={"realtime_ns": 1, "monotonic_ns": 1})
        write_manifest(paths, 2, None)
        paths.rank_folder(3).mkdir()
        paths.manifest(3).write_text("{")
        write_manifest(paths, 4, launcher.pid)
        assert list(RankCounters(paths, NODE).read()) == ["4"]


def test_a_process_id_that_was_given_again_is_not_counted() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert tree_counters({os.getpid(): stat.start_ticks + 1}) == {}
    assert tree_counters({os.getpid(): stat.start_ticks})["threads"] >= 1


def test_a_process_with_odd_characters_in_its_name_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.write_text("#!/bin/sh\nread line\necho done\nread line\n")
    odd.chmod(0o755)
    with started([str(odd)]) as child:
        let_read(child)
        stat = read_stat(child.pid)
    assert stat is not None
    assert (stat.name, stat.parent, stat.threads) == ("a) R (b", os.getpid(), 1)


def test_descendants_end_where_parents_form_a_ring() -> None:
    assert descendants(1, {1: [2, 3], 2: [4], 4: [1, 2]}) == {2, 3, 4}


# ---- the test read


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it did not come")


def result(watched: Canary) -> dict[str, int]:
    """The counters of the read that is going on, when it has come back."""

    def look() -> dict[str, int]:
        got = watched.look()
        return {} if "canary_pending_ns" in got else got

    found: dict[str, int] = until(look)
    return found


@pytest.mark.parametrize(
    ("size", "expected"), [(200_000, 65_536), (65_536, 65_536), (1_000, 1_000)]
)
def test_a_test_read_takes_at_most_64_kib(tmp_path: Path, size: int, expected: int) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.jpg").write_bytes(os.urandom(size))
    got = result(Canary(str(tmp_path)))
    assert got["canary_read_bytes"] == expected
    times = {name for name in got if name.endswith("_ns")}
    assert times == {"canary_stat_ns", "canary_open_ns", "canary_read_ns"}
    assert all(got[name] > 0 for name in times)


def test_an_empty_file_gives_no_time_of_a_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert set(timed_read(str(tmp_path / "empty"))) == {"canary_stat_ns", "canary_open_ns"}


def test_test_reads_keep_their_distance(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    watched = Canary(str(tmp_path))
    assert result(watched)["canary_read_bytes"] == 10
    clock.forward(9.9)
    assert [watched.look() for _ in range(3)] == [{}, {}, {}]
    assert canary_threads() == []
    clock.forward(0.1)
    assert result(watched)["canary_read_bytes"] == 10


def canary_threads() -> list[str]:
    return [t.name for t in canary.threading.enumerate() if t.name == "hpcprof canary"]


def test_a_file_system_that_hangs_is_reported_and_hangs_nobody(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    watched = Canary(str(tmp_path))
    result(watched)
    path.unlink()
    os.mkfifo(path)  # opening it does not return until somebody writes
    clock.forward(10)
    assert watched.look() == {}
    for seconds in (1, 20, 100):
        clock.forward(seconds)
        got = watched.look()
    assert got == {"canary_pending_ns": 121_000_000_000}
    assert canary_threads() == ["hpcprof canary"]
    with open(path, "wb"):
        got = until(lambda: {k: v for k, v in watched.look().items() if "pending" not in k})
    assert got == {"canary_errors": 1}  # a pipe has no places to read at
    path.unlink()
    (tmp_path / "b").write_bytes(b"xyz")
    clock.forward(10)
    got = result(watched)
    assert (got["canary_read_bytes"], got["canary_errors"]) == (3, 1)
    assert watched.problem == ""


def test_without_a_data_set_there_is_no_test_read(tmp_path: Path) -> None:
    watched = Canary(None)
    assert [watched.look(), watched.look()] == [{}, {}]
    assert (watched.problem, canary_threads()) == ("", [])


def test_a_data_set_without_files_or_folder_is_told(tmp_path: Path, clock: Clock) -> None:
    sampler = Sampler(ArtifactPaths(tmp_path / "run"), NODE, str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()

    def told() -> bool:
        clock.forward(10)
        sampler.sample()
        return bool(sampler.problems)

    # a training may be about to make its data set
    assert not told()
    until(told)
    assert sampler.problems == [f"no test reads: no file was found in {tmp_path / 'empty'}"]
    assert result(Canary(str(tmp_path / "missing"))) == {"canary_errors": 1}


def test_files_are_found_in_folders_and_through_links_but_not_without_end(tmp_path: Path) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "deep").touch()
    (tmp_path / "top").touch()
    (tmp_path / "one" / "link").symlink_to(tmp_path / "top")
    (tmp_path / "one" / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    found = first_files(str(tmp_path), seconds=PATIENCE_SECONDS)
    assert {Path(path).relative_to(tmp_path).as_posix() for path in found} == {
        *("top", "one/link", "one/two/deep")
    }
    (tmp_path / "one" / "up").symlink_to(tmp_path)
    assert len(first_files(str(tmp_path), seconds=PATIENCE_SECONDS)) <= canary.SCAN_FILES


def test_the_search_for_files_is_bounded(tmp_path: Path) -> None:
    for number in range(1_100):
        (tmp_path / str(number)).touch()
    found = first_files(str(tmp_path), seconds=PATIENCE_SECONDS)
    assert len(set(found)) == len(found) == 1_000
    assert len(first_files(str(tmp_path), seconds=0.0)) == 1
