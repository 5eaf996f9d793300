"""The cluster itself: nodes, clocks, accounting, MPI, faults, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import lifecycle, mounts, network, processes, state
from tests.cluster.clocks import ClockSkew
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterBusyError, ClusterError
from tests.cluster.layout import BASE_VARIABLE, Layout
from tests.cluster.requirements import missing
from tests.setup import paths

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]

# one task on each of the first two nodes, which a cluster of any size has
BOTH = ("--nodelist=node0,node1", "--nodes=2", "--ntasks-per-node=1")

BURN = """
import time
t = time.process_time
begin, cpu = time.monotonic(), t()
while t() - cpu < 0.3: pass
print(time.monotonic() - begin)
"""

MPI_PING = """
import json, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rtts = []
for _ in range(50):
    begin = time.monotonic_ns()
    if world.rank == 0:
        world.send(b"ping", dest=1); world.recv(source=1)
        rtts.append(time.monotonic_ns() - begin)
    else:
        world.recv(source=0); world.send(b"pong", dest=0)
names = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print(json.dumps({"size": world.size, "names": names, "rtt_us": min(rtts) / 1000}))
"""

# one task per node; the receiver prints how long the bytes took to arrive
TRANSFER = """
import os, socket, sys, time
sender, address, size = sys.argv[1], (sys.argv[2], 4242), 1_500_000
if os.uname().nodename == sender:
    deadline = time.monotonic() + 20
    while True:
        try:
            link = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    link.sendall(bytes(size))
    link.close()
else:
    link = socket.create_server(address).accept()[0]
    begin, count = time.monotonic(), 0
    while data := link.recv(1 << 16):
        count += len(data)
    assert count == size
    print(time.monotonic() - begin)
"""

# true and skewed clock in turn, the narrowest of many tries; twice, some time apart
READ_CLOCKS = """
import json, os, time
from hpcprof.artifacts import node_time
def reading():
    tries = []
    for _ in range(50):
        before, real_before = time.monotonic_ns(), time.time_ns()
        monotonic, realtime = node_time.monotonic_ns(), node_time.realtime_ns()
        tries.append((before, real_before, monotonic, realtime,
                      time.time_ns(), time.monotonic_ns()))
    return min(tries, key=lambda each: each[-1] - each[0])
first = reading()
time.sleep(0.3)
print(json.dumps([os.uname().nodename, first, reading()]))
"""


@pytest.fixture
def folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """A fresh folder that host and nodes share."""
    path = Path(cluster.shared, request.node.name)
    path.mkdir()
    return path


@pytest.fixture
def sleeper(cluster: Cluster, folder: Path) -> Iterator[int]:
    """Job id of a running step with one rank on each node."""
    script = folder / "sleep.sh"
    script.write_text("#!/bin/sh\nsrun --kill-on-bad-exit=1 sleep 60\n")
    job_id = cluster.sbatch(script, *BOTH, cwd=folder)
    deadline = time.monotonic() + 20
    while not cluster.find_rank_pids(job_id, 1, command="sleep"):
        assert time.monotonic() < deadline, "the step did not start"
        time.sleep(0.1)
    yield job_id
    cluster.cancel(job_id)


def test_each_node_answers_under_its_own_name(cluster: Cluster) -> None:
    every = [f"--nodes={len(cluster.nodes)}", "--ntasks-per-node=1"]
    done = cluster.run("srun", *every, "hostname")
    assert sorted(done.stdout.split()) == cluster.nodes
    assert cluster.nodes[:2] == ["node0", "node1"]


def test_monotonic_clocks_are_1000_seconds_apart(cluster: Cluster) -> None:
    script = "import socket, time; print(socket.gethostname(), time.monotonic())"
    done = cluster.run("srun", *BOTH, sys.executable, "-c", script)
    clocks = dict(line.split() for line in done.stdout.splitlines())
    assert float(clocks["node1"]) - float(clocks["node0"]) == pytest.approx(1000, abs=2)


def test_nodes_share_files_but_not_dev_shm_and_not_tmp(cluster: Cluster, folder: Path) -> None:
    places = [str(folder), "/dev/shm", "$TMPDIR"]
    for place in places:
        cluster.run("srun", "-w", "node0", "sh", "-c", f"touch {place}/from-node0")
    seen = cluster.run(
        "srun", "-w", "node1", "sh", "-c", f"ls {' '.join(f'{p}/from-*' for p in places)}; true"
    )
    assert seen.stdout.split() == [f"{folder}/from-node0"]


def test_accounting_knows_job_steps_and_gpus(cluster: Cluster, folder: Path) -> None:
    script = folder / "job.sh"
    script.write_text("#!/bin/sh\nsrun sh -c 'exit 3'\n")
    job_id = cluster.sbatch(script, *BOTH, "--gres=gpu:2", cwd=folder)
    assert cluster.wait(job_id) == "FAILED"
    job, *steps = cluster.sacct(job_id, "JobID,State,ExitCode,AllocTRES,NodeList")
    assert job["NodeList"] == "node[0-1]"
    assert "gres/gpu=4" in job["AllocTRES"]
    assert {s["JobID"]: s["ExitCode"] for s in steps}[f"{job_id}.0"] == "3:0"


def test_gpus_are_numbered_for_each_task(cluster: Cluster) -> None:
    done = cluster.run("srun", "-n1", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert done.stdout.strip() == "0,1"


def test_mpi_reaches_from_node_to_node(cluster: Cluster, folder: Path) -> None:
    python = paths.train_python()
    if python is None:
        pytest.skip("no training environment with mpi4py; run make setup")
    (folder / "ping.py").write_text(MPI_PING)
    command = ["srun", "--mpi=pmix", *BOTH]
    result = json.loads(cluster.run(*command, str(python), str(folder / "ping.py")).stdout)
    assert (result["size"], sorted(result["names"])) == (2, ["node0", "node1"])
    assert result["rtt_us"] < 10_000


def _burn_seconds(cluster: Cluster, node: str) -> float:
    return float(cluster.run("srun", "-w", node, sys.executable, "-c", BURN).stdout)


def test_slow_cpu_of_a_node_and_its_end(cluster: Cluster) -> None:
    with cluster.slow_cpu(node="node1", quota=0.2):
        slow, other = _burn_seconds(cluster, "node1"), _burn_seconds(cluster, "node0")
    after = _burn_seconds(cluster, "node1")
    # 0.3 s of CPU time at 0.2 cores takes at least 1.2 s, whatever else the machine does
    assert slow > 1.0
    assert min(other, after) < slow * 0.8


def test_slow_cpu_of_one_rank_and_its_end(cluster: Cluster, folder: Path) -> None:
    log, script = folder / "log.%t", "import time\nwhile 1:" + BURN.replace("\n", "\n    ")
    (folder / "burn.py").write_text(script)
    job_id = cluster.sbatch(
        _script(folder, f"srun -u -o {log} {sys.executable} -u {folder}/burn.py"),
        *BOTH,
        cwd=folder,
    )
    try:
        _wait_for_lines(folder / "log.1", 1)
        pid = cluster.find_rank_pids(job_id, 1, command="burn.py")[-1]
        with cluster.slow_cpu(pids=[pid], quota=0.2):
            done = len(_lines(folder / "log.1"))
            _wait_for_lines(folder / "log.1", done + 2)
            slow = float(_lines(folder / "log.1")[done + 1])
            assert slow > 1.0
        # the first one after the end began before it
        done = len(_lines(folder / "log.1")) + 1
        deadline = time.monotonic() + 30
        # with the quota every one takes 1.5 s, without it one is quick sooner or later
        while not any(float(line) < 1.0 for line in _lines(folder / "log.1")[done:]):
            assert time.monotonic() < deadline, "as slow as with the quota"
            time.sleep(0.05)
    finally:
        cluster.cancel(job_id)


def test_slow_filesystem_is_slow_on_one_node_each_time(cluster: Cluster, folder: Path) -> None:
    (folder / "data").write_bytes(os.urandom(4_000_000))
    read = (
        "import sys, time; begin = time.monotonic(); open(sys.argv[1], 'rb').read();"
        "print(time.monotonic() - begin)"
    )

    def seconds(node: str) -> float:
        command = ["srun", "-w", node, sys.executable, "-c", read, str(folder / "data")]
        return float(cluster.run(*command).stdout)

    with cluster.slow_filesystem("node1", folder, mb_per_s=4):
        first, second, other = seconds("node1"), seconds("node1"), seconds("node0")
    after = seconds("node1")
    assert first > 0.6
    assert second > 0.6
    assert max(other, after) < 0.5


def test_who_reads_while_a_slow_filesystem_ends_reads_on(cluster: Cluster, folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}").write_bytes(os.urandom(20_000))
    read = (
        "import os, sys, time; begin = time.monotonic(); sizes = set()\n"
        "while time.monotonic() < begin + 6:\n"
        "    for name in os.listdir(sys.argv[1]):\n"
        "        sizes.add(len(open(sys.argv[1] + '/' + name, 'rb').read()))\n"
        "print(sizes)"
    )
    command = ["srun", "-w", "node1", sys.executable, "-c", read, str(folder)]
    with cluster.slow_filesystem("node1", folder, mb_per_s=0.3):
        job = subprocess.Popen(command, env=cluster.env, stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        assert job.poll() is None
    printed, _ = job.communicate(timeout=60)
    assert (job.returncode, printed) == (0, "{20000}\n")


def _transfer_seconds(cluster: Cluster, sender: str, receiver: str) -> float:
    command = ["srun", *BOTH, sys.executable, "-c", TRANSFER]
    return float(cluster.run(*command, sender, cluster.address(receiver)).stdout)


def _buckets(cluster: Cluster, node: str) -> list[str]:
    """The ends of a node's link that have a token bucket."""
    inside = cluster.run_in_node(node, "tc", "qdisc", "show", "dev", "eth0").stdout
    veth = cluster.layout.veth(cluster.nodes.index(node))
    outside = cluster.run("tc", "qdisc", "show", "dev", veth).stdout
    return [end for end, text in (("eth0", inside), ("veth", outside)) if " tbf " in f" {text} "]


def test_slow_network_limits_what_one_node_sends_and_its_end(cluster: Cluster) -> None:
    with cluster.slow_network("node1", mbit_per_s=8):
        slow = _transfer_seconds(cluster, "node1", "node0")
        # at once what another node sends, and what the slow one receives
        other = _transfer_seconds(cluster, "node0", "node1")
        assert _buckets(cluster, "node1") == ["eth0"]
        assert _buckets(cluster, "node0") == []
    after = _transfer_seconds(cluster, "node1", "node0")
    # 1.5 MB at 8 Mbit/s take 1.5 s, whatever else the machine does
    assert slow > 1.4
    assert max(other, after) < slow / 2
    assert _buckets(cluster, "node1") == []


def test_slow_network_can_limit_what_a_node_receives(cluster: Cluster) -> None:
    with cluster.slow_network("node1", mbit_per_s=8, receive=True):
        assert _transfer_seconds(cluster, "node0", "node1") > 1.4
        assert _buckets(cluster, "node1") == ["eth0", "veth"]
    assert _buckets(cluster, "node1") == []


def test_a_network_that_is_slow_already_is_not_slowed_again(cluster: Cluster) -> None:
    with cluster.slow_network("node1", mbit_per_s=8):
        with (
            pytest.raises(ClusterError, match="cannot limit eth0"),
            cluster.slow_network("node1", mbit_per_s=1),
        ):
            pass
        assert _buckets(cluster, "node1") == ["eth0"]
    assert _buckets(cluster, "node1") == []


def test_skewed_clocks_show_what_the_truth_says(cluster: Cluster) -> None:
    skews = {
        "node0": ClockSkew(monotonic_ppb=-30_000, realtime_offset_ns=-5_000_000_000),
        # a rate no crystal has, so that seconds are enough to see it
        "node1": ClockSkew(monotonic_ppb=500_000_000, realtime_offset_ns=40_000_000),
    }
    command = ["srun", *BOTH, sys.executable, "-c", READ_CLOCKS]
    with cluster.skewed_clocks(skews) as clocks:
        begin = time.monotonic_ns()
        lines = cluster.run(*command, env=clocks.env).stdout.splitlines()
        end = time.monotonic_ns()
    seen = {node: readings for node, *readings in map(json.loads, lines)}
    assert sorted(seen) == ["node0", "node1"]
    assert list(cluster.shared.glob("clocks-*")) == []
    elapsed = {}
    for node, readings in seen.items():
        clock = clocks.nodes[node]
        for before, real_before, monotonic, realtime, real_after, after in readings:
            assert begin < clocks.host_monotonic_ns(node, monotonic) < end
            # the host's clock at the two true readings around the skewed ones
            low, high = (true - clock.ahead_ns for true in (before, after))
            assert clock.monotonic_ns(low) <= monotonic <= clock.monotonic_ns(high)
            ahead_low, ahead_high = sorted(map(clock.realtime_ahead_ns, (low, high)))
            assert real_before + ahead_low <= realtime <= real_after + ahead_high
        (first, *_), (second, *_) = readings
        elapsed[node] = (readings[1][2] - readings[0][2]) / (second - first)
    assert elapsed == {
        "node0": pytest.approx(1 - 30e-6, abs=0.01),
        "node1": pytest.approx(1.5, abs=0.01),
    }


def test_a_node_without_a_skew_keeps_its_true_clocks(cluster: Cluster) -> None:
    script = (
        "import time; from hpcprof.artifacts import node_time;"
        "print(node_time.monotonic_ns is time.monotonic_ns, node_time.realtime_ns is time.time_ns)"
    )
    command = ["srun", "-w", "node0", sys.executable, "-c", script]
    with cluster.skewed_clocks({"node1": ClockSkew(monotonic_ppb=30_000)}) as clocks:
        assert cluster.run(*command, env=clocks.env).stdout.split() == ["True", "True"]
        true = time.monotonic_ns()
        assert clocks.nodes["node0"].monotonic_ns(true) == true
        assert clocks.nodes["node1"].ahead_ns == 1000 * 10**9


def test_clocks_of_nodes_that_do_not_exist_are_refused(cluster: Cluster) -> None:
    with (
        pytest.raises(ValueError, match="no such node: node7"),
        cluster.skewed_clocks({"node7": ClockSkew(monotonic_ppb=1)}),
    ):
        pass


def test_full_disk_is_one_disk_for_everybody(cluster: Cluster, folder: Path) -> None:
    (folder / "before").touch()
    with cluster.full_disk(folder, mb=1):
        fill = f"head -c 700000 /dev/zero > {folder}/from-$(hostname)"
        first = cluster.run("srun", "-w", "node0", "sh", "-c", fill, check=False)
        second = cluster.run("srun", "-w", "node1", "sh", "-c", fill, check=False)
        assert first.returncode == 0
        assert "No space left" in second.stderr
        assert sorted(os.listdir(folder)) == ["from-node0", "from-node1"]
    assert os.listdir(folder) == ["before"]
    assert cluster.run_in_node("node1", "ls", str(folder)).stdout.split() == ["before"]


def test_killed_rank_is_the_one_asked_for(cluster: Cluster, folder: Path, sleeper: int) -> None:
    first, second = (cluster.find_rank_pids(sleeper, r, command="sleep") for r in (0, 1))
    assert len(first) == len(second) == 1
    assert first != second
    cluster.kill_rank(second[0])
    cluster.wait(sleeper, timeout=30)
    assert "task 1: Killed" in (folder / f"slurm-{sleeper}.out").read_text()


def test_kill_rank_refuses_processes_of_the_host(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="does not run on a node"):
        cluster.kill_rank(os.getppid())


@pytest.mark.parametrize("moment", ["link", "mariadb-install-db", "slurmctld", "node0"])
def test_down_after_sigkill_in_the_middle_of_up(tmp_path: Path, moment: str) -> None:
    if reason := missing():
        pytest.skip(reason)
    layout = Layout(tmp_path / "cluster")
    starter = _start_up(layout)
    _wait_for_resource(layout, moment)
    starter.kill()
    starter.wait()
    assert lifecycle.leftovers(layout)
    assert lifecycle.down(layout) == []
    assert not layout.base.exists()
    assert lifecycle.down(layout) == []


def test_second_up_is_refused_while_one_is_at_work(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    layout = Layout(tmp_path / "cluster")
    starter = _start_up(layout)
    try:
        _wait_for_resource(layout, "link")
        with pytest.raises(ClusterBusyError, match="at work"):
            lifecycle.up(layout)
    finally:
        starter.send_signal(signal.SIGTERM)
        starter.wait(timeout=30)
    # SIGTERM, unlike SIGKILL, cleans by itself
    assert lifecycle.leftovers(layout) == []


def test_cluster_of_a_killed_test_session_is_replaced(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    layout = Layout(tmp_path / "cluster")
    session = (
        "import os; from tests.cluster import lifecycle, layout;"
        "lifecycle.up(layout.Layout.from_environ(), 1, 'test'); os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, BASE_VARIABLE: str(layout.base)}
    done = subprocess.run([sys.executable, "-c", session], cwd=ROOT, env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert lifecycle.leftovers(layout)
    (layout.shared / "old").touch()
    try:
        fresh = lifecycle.up(layout, 1)
        assert fresh.owner_kind == "hand"
        assert os.listdir(fresh.shared) == []
    finally:
        assert lifecycle.down(layout) == []


def test_slow_network_of_a_killed_test_session_goes_with_its_cluster(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    layout = Layout(tmp_path / "cluster")
    session = (
        "import os; from tests.cluster import lifecycle, layout;"
        "cluster = lifecycle.up(layout.Layout.from_environ(), 1, 'test');"
        "fault = cluster.slow_network('node0', 8, receive=True);"
        "fault.__enter__(); os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, BASE_VARIABLE: str(layout.base)}
    done = subprocess.run([sys.executable, "-c", session], cwd=ROOT, env=env, check=False)
    try:
        assert done.returncode == -signal.SIGKILL
        assert _buckets(lifecycle.open_cluster(layout), "node0") == ["eth0", "veth"]
    finally:
        left = lifecycle.down(layout)
    # the end of a pair cannot outlive the other, so no namespace holds an eth0 of this cluster
    assert (left, network.links_of(layout)) == ([], [])


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "thesis.txt").touch()
    for action in (lifecycle.up, lifecycle.down):
        with pytest.raises(ClusterError, match="left alone"):
            action(Layout(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_reused_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stat = processes.stat_of(stranger.pid)
        assert stat is not None
        recorded = state.Resource("process", "munged", stranger.pid, stat.start - 1)
        processes.end([recorded])
        assert stranger.poll() is None
        processes.kill(stranger.pid, stat.start)
        assert stranger.wait(timeout=5) == -signal.SIGKILL


def test_record_keeps_what_other_processes_add(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    owner = state.Owner("hand", os.getpid(), 1)
    state.write(layout, state.State(phase="up", owner=owner, node_count=2))
    added = state.Resource("mount", "/x y")
    state.record(layout, added)
    state.record(layout, state.Resource("link", "hpb"))
    state.forget(layout, added)
    found = state.read(layout)
    assert found is not None
    assert [r.name for r in found.resources] == ["hpb"]
    assert mounts.mount_points_under(tmp_path) == []


def _script(folder: Path, line: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/sh\n{line}\n")
    return path


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(_lines(path)) < count:
        assert time.monotonic() < deadline, f"{path} has {len(_lines(path))} of {count} lines"
        time.sleep(0.05)


def _start_up(layout: Layout) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "up"],
        cwd=ROOT,
        env={**os.environ, BASE_VARIABLE: str(layout.base)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for_resource(layout: Layout, name: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        found = state.read(layout)
        if found and any(name in (r.kind, r.name) for r in found.resources):
            return
        assert time.monotonic() < deadline, f"`up` did not come to {name}"
        time.sleep(0.005)
