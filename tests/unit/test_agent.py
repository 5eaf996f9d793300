"""The node agent: real processes on this machine, talking over UDP and TCP."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.artifacts import node_time
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.agent import measure
from hpcprof.launch.agent.addresses import own_hosts
from hpcprof.launch.agent.record_file import RecordFile
from hpcprof.launch.agent.sampling import pause_s
from hpcprof.launch.agent.transport import Exchange, NoTransport, PeerSilentError
from hpcprof.launch.agent.udp import UdpTransport
from tests.unit import agents
from tests.unit.agents import Agents

pytestmark = pytest.mark.unit


def test_three_agents_bracket_their_true_clock_offsets_and_end_on_sigterm(tmp_path: Path):
    rates = {"node0": 0, "node1": 30_000, "node2": -50_000}
    clocks = agents.write_clocks(tmp_path / "clocks.json", rates)
    with Agents(tmp_path / "run", 3, clocks=tmp_path / "clocks.json") as started:
        started.wait_for_bursts(1)
        ended = started.end()
    assert [code for code, _ in ended] == [0, 0, 0]
    for task, node in enumerate(rates):
        first = agents.records(started.paths.node_clock(node))[0]
        assert (first["kind"], first["node"], first["schema"]) == ("agent", node, 1)
        assert (first["reference"], first["transport"]) == ("node0", "udp")
        notes = [record["text"] for record in started.clock(task, "note")]
        assert [note for note in notes if not agents.is_silence(note)] == []
        assert [record["reason"] for record in started.clock(task, "end")] == ["SIGTERM"]
    assert started.clock(0, "exchange") == []
    for task in (1, 2):
        exchanges = started.clock(task, "exchange")
        agents.assert_true_offset_is_inside(clocks, f"node{task}", exchanges)
        # 30 and 50 ppm of 1000 s: far more than a round trip, so that the line above can fail
        assert abs(exchanges[0]["arrived_ns"] - exchanges[0]["sent_ns"]) > 20_000_000


def test_every_burst_keeps_five_exchanges_and_one_reading_of_the_wall_clock(tmp_path: Path):
    with Agents(tmp_path / "run", 2) as started:
        started.wait_for_bursts(2)
        started.end()
    exchanges = started.clock(1, "exchange")
    bursts = [record["burst"] for record in exchanges]
    number = max(bursts) + 1
    assert bursts == [burst for burst in range(number) for _ in range(5)]
    assert len(started.clock(1, "wall")) == number
    for record in exchanges:
        assert record["received_ns"] > record["sent_ns"]
        assert record["answered_ns"] >= record["arrived_ns"]
    for task in (0, 1):
        for record in started.clock(task, "wall"):
            assert record["after_ns"] >= record["before_ns"]


def test_links_lead_to_the_next_two_neighbours_first_and_then_to_others(tmp_path: Path):
    with Agents(tmp_path / "run", 4) as started:
        # of burst 0 the exchanges come first: ended after them it would measure no links
        started.wait_for_bursts(1)
        started.end()
    for task in range(4):
        links = started.links(task)
        peers = list(dict.fromkeys(record["peer"] for record in links))
        assert peers == [f"node{(task + distance) % 4}" for distance in (1, 2, 3)]
        assert {record["transport"] for record in links} == {"tcp"}
        assert {record["bytes"] for record in links} >= {measure.SMALL_BYTES}
        assert all(record["round_trip_ns"] > 0 for record in links)
        assert all(record["duration_ns"] > 0 for record in links)


def test_files_are_for_the_user_alone_and_the_reader_takes_them(tmp_path: Path):
    from hpcprof.readers import agent_files

    with Agents(tmp_path / "run", 2) as started:
        started.wait_for_bursts(1)
        started.end()
    folder = started.paths.node_folder("node1")
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    names = ("address.json", "clock.jsonl", "facts.json", "links.jsonl", "samples.jsonl")
    assert modes == dict.fromkeys(names, 0o600)
    clock = agent_files.read_exchanges(started.paths, "node1")
    assert (clock.reference, clock.transport, clock.ended) == ("node0", "udp", True)
    assert len(clock.exchanges) == len(started.clock(1, "exchange"))
    assert clock.warnings == ()
    assert len(agent_files.read_links(started.paths, "node1")) == len(started.links(1))
    assert len(agent_files.read_samples(started.paths, "node1")) > 0


def test_a_killed_reference_leaves_the_others_running_and_noting_it(tmp_path: Path):
    with Agents(tmp_path / "run", 3) as started:
        started.wait_for_bursts(0)
        started.processes[0].kill()
        started.wait_until(lambda: all(started.clock(task, "note") for task in (1, 2)))
        assert [process.poll() for process in started.processes[1:]] == [None, None]
        ended = started.end()
    assert [code for code, _ in ended] == [-signal.SIGKILL, 0, 0]
    for task in (1, 2):
        assert "node0" in started.clock(task, "note")[0]["text"]
        assert len(started.clock(task, "end")) == 1
    assert "node0" in ended[1][1]


def test_agents_that_never_see_the_reference_end_cleanly(tmp_path: Path):
    with Agents(tmp_path / "run", 1) as started:  # only to have its folder and means to end it
        env = agents.environ() | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
        env |= {"SLURMD_NODENAME": "node1"}
        lonely = subprocess.Popen(
            agents.argv(started.run_dir), env=env, stderr=subprocess.PIPE, text=True
        )
        samples = started.paths.node_samples("node1")
        started.wait_until(lambda: len(agents.records(samples)) > 1)
        lonely.terminate()
        assert "no address of task 0" in lonely.communicate(timeout=30)[1]
    assert lonely.returncode == 0
    clock = agents.records(started.paths.node_clock("node1"))
    assert clock[0]["kind"] == "agent"
    assert clock[0]["reference"] is None
    assert clock[-1]["kind"] == "end"


def test_an_agent_alone_reads_its_wall_clock_and_samples(tmp_path: Path):
    with Agents(tmp_path / "run", 1) as started:
        started.wait_until(lambda: len(started.clock(0, "wall")) > 1)
        assert started.end()[0][0] == 0
    assert started.clock(0, "agent")[0]["transport"] == "none"
    assert started.clock(0, "note") == []
    assert len(agents.records(started.paths.node_samples("node0"))) >= 2


def test_an_unwritable_run_folder_ends_the_agent_with_code_0(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "nodes").write_text("a file in the folder's place: root may write anywhere")
    with Agents(tmp_path / "run", 2) as started:
        texts = [process.communicate(timeout=30)[1] for process in started.processes]
        assert [process.returncode for process in started.processes] == [0, 0]
    assert "cannot be made" in texts[0]
    assert "Traceback" not in texts[0]


@pytest.mark.parametrize("taken", ["SLURM_PROCID", "run_dir"])
def test_an_agent_that_does_not_know_who_or_where_it_is_ends_with_code_0(
    tmp_path: Path, taken: str
):
    env = agents.environ() | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    env.pop(taken, None)
    command = agents.argv(tmp_path)
    if taken == "run_dir":
        at = command.index("--run-dir")
        del command[at : at + 2]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert ("no rank" if taken == "SLURM_PROCID" else "no run folder") in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_agent_runs_where_the_record_says_none(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"launch": {"agent": "none"}}))
    env = agents.environ() | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    done = subprocess.run(agents.argv(tmp_path), env=env, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def udp_pair(tmp_path: Path) -> tuple[UdpTransport, UdpTransport]:
    paths = ArtifactPaths(tmp_path)
    for node in ("a", "b"):
        paths.node_folder(node).mkdir(parents=True)
    return UdpTransport(paths, 0, "a"), UdpTransport(paths, 1, "b")


def test_foreign_packets_and_connections_are_ignored(tmp_path: Path):
    first, second = udp_pair(tmp_path)
    address = json.loads(ArtifactPaths(tmp_path).node_address("a").read_text())
    host = address["hosts"][0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.3)
        for packet in (b"", b"x" * 24, b"x" * 4000, bytes.fromhex(address["token"])):
            stranger.sendto(packet, (host, address["udp_port"]))
        with pytest.raises(TimeoutError):
            stranger.recv(100)
    with socket.create_connection((host, address["tcp_port"]), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert second.ping(0).round_trip_ns > 0
    assert second.send(0, 100_000)[1] > 0
    first.close()
    second.close()


def test_a_stranger_that_keeps_its_connection_delays_a_link_for_seconds_only(tmp_path: Path):
    _, second = udp_pair(tmp_path)
    address = json.loads(ArtifactPaths(tmp_path).node_address("a").read_text())
    with socket.create_connection((address["hosts"][0], address["tcp_port"]), timeout=5):
        assert second.send(0, 0)[1] > 0
    second.close()


def test_an_unknown_task_is_silent(tmp_path: Path):
    first, _ = udp_pair(tmp_path)
    assert first.nodes == {0: "a"}
    assert first.seek([1])
    assert first.nodes == {0: "a", 1: "b"}
    assert not first.seek([7])
    with pytest.raises(PeerSilentError, match="no address of task 7"):
        first.ping(7)


def test_damaged_addresses_are_passed_over(tmp_path: Path):
    first, _ = udp_pair(tmp_path)
    for node, text in (("c", "{"), ("d", "[]"), ("e", '{"task": 2}'), ("f", '{"token": 3}')):
        path = ArtifactPaths(tmp_path).node_address(node)
        path.parent.mkdir()
        path.write_text(text)
    assert first.seek([1])
    assert not first.seek([2])


def test_addresses_are_of_no_use_to_the_node_itself_only():
    hosts = own_hosts()
    assert hosts
    assert hosts == ["127.0.0.1"] or not any(host.startswith("127.") for host in hosts)


def test_a_full_record_file_says_so_once_and_keeps_room_for_the_end(tmp_path: Path):
    said: list[str] = []
    path = tmp_path / "clock.jsonl"
    file = RecordFile(path, said.append, limit_bytes=10_000)
    for number in range(1000):
        file.append({"kind": "exchange", "number": number})
    assert path.stat().st_size <= 10_000 - 4096
    assert len(said) == 1
    assert "full" in said[0]
    for _ in range(1000):
        file.append({"kind": "note", "text": "x" * 50})
    assert 9_900 < path.stat().st_size <= 10_000
    numbers = [record["number"] for record in agents.of_kind(path, "exchange")]
    assert numbers == list(range(len(numbers)))


def test_a_record_file_counts_what_an_earlier_agent_wrote(tmp_path: Path):
    path = tmp_path / "links.jsonl"
    path.write_bytes(b"x" * 9_000)
    said: list[str] = []
    RecordFile(path, said.append, limit_bytes=10_000).append({"kind": "link"})
    assert path.stat().st_size == 9_000
    assert len(said) == 1


def test_a_full_disk_stops_the_file_and_raises_nothing():
    said: list[str] = []
    file = RecordFile(Path("/dev/full"), said.append)
    file.append({"kind": "sample"})
    file.append({"kind": "sample"})
    assert said == [f"full cannot be written: {os.strerror(errno.ENOSPC)}"]
    assert not file.is_open


def test_threads_write_whole_lines(tmp_path: Path):
    file = RecordFile(tmp_path / "x.jsonl", lambda problem: None)

    def write(thread: int) -> None:
        for number in range(200):
            file.append({"kind": "sample", "thread": thread, "number": number})

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(r["thread"], r["number"]) for r in agents.records(tmp_path / "x.jsonl")]
    assert sorted(found) == [(thread, number) for thread in range(4) for number in range(200)]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=60
    )
)
def test_the_narrowest_exchanges_are_kept(parts: list[tuple[int, int, int]]):
    exchanges = [
        Exchange(0, 5 * 10**9 + there, 5 * 10**9 + there + busy, there + busy + back)
        for there, busy, back in parts
    ]
    kept = measure.narrowest(exchanges)
    assert [e.round_trip_ns for e in kept] == sorted(t + b for t, _, b in parts)[:5]


@given(st.integers(1, 100), st.integers(0, 1000))
def test_in_each_burst_every_task_sends_to_others_and_as_many_send_to_it(tasks: int, burst: int):
    found = [measure.neighbours(task, tasks, burst) for task in range(tasks)]
    for task, others in enumerate(found):
        assert task not in others
        assert len(set(others)) == len(others) == min(2, tasks - 1)
    reached = sorted(other for others in found for other in others)
    assert reached == sorted(list(range(tasks)) * min(2, tasks - 1))


@given(st.integers(2, 100), st.data())
def test_over_the_bursts_all_tasks_up_to_64_further_on_come_round(tasks: int, data: st.DataObject):
    task = data.draw(st.integers(0, tasks - 1))
    farthest = min(tasks - 1, 64)
    bursts = range((farthest + 1) // 2)
    reached = [other for burst in bursts for other in measure.neighbours(task, tasks, burst)]
    wanted = [(task + distance) % tasks for distance in range(1, farthest + 1)]
    assert reached[:2] == wanted[:2]
    assert set(reached) == set(wanted)


class ScriptedLink(NoTransport):
    """Takes each message for as long as ``per_byte_ns`` says."""

    def __init__(self, per_byte_ns: float) -> None:
        super().__init__(0, "here")
        self.nodes = {0: "here", 1: "there"}
        self.per_byte_ns = per_byte_ns
        self.sizes: list[int] = []

    def send(self, task: int, size: int) -> tuple[int, int]:
        self.sizes.append(size)
        return 5, 1000 + int(size * self.per_byte_ns)


def test_a_slow_link_gets_one_small_message_only():
    link = ScriptedLink(per_byte_ns=100.0)
    records = measure.probe_link(link, 1, lambda: False)
    assert [(r["bytes"], r["duration_ns"], r["round_trip_ns"]) for r in records] == [
        (65536, 6_554_600, 1000)
    ]
    assert [size for size in link.sizes if size] == [65536]


def test_a_fast_link_gets_both_sizes():
    link = ScriptedLink(per_byte_ns=0.1)
    records = measure.probe_link(link, 1, lambda: False)
    assert [(r["peer"], r["bytes"], r["duration_ns"]) for r in records] == [
        ("there", 65536, 1000 + 6553),
        ("there", 1048576, 1000 + 104857),
    ]


def test_a_wall_reading_lies_in_its_bracket():
    earliest = node_time.realtime_ns()
    record = measure.wall_reading()
    assert record["before_ns"] <= record["after_ns"]
    assert earliest <= record["realtime_ns"] <= node_time.realtime_ns()


@pytest.mark.parametrize(
    ("age", "pause"), [(0, 2.0), (599, 2.0), (600, 10.0), (10_799, 10.0), (10_800, 60.0)]
)
def test_long_jobs_are_sampled_less_often(age: float, pause: float):
    assert pause_s(age, 2.0) == pause
    assert pause_s(age, 90.0) == 90.0


CHILD = """
import os, signal, sys, time
from hpcprof.launch.agent import mpi_child
from hpcprof.launch.signals import SignalInbox
mpi_child.START_SECONDS = mpi_child.LAST_SECONDS = 0.5
inbox = SignalInbox()
def body(started):
    {body}
print(*mpi_child.run(body, inbox), sep="|")
"""


def watched(body: str) -> tuple[str, str]:
    """What is printed by a program that has ``body`` run in its child, and its stderr."""
    code = CHILD.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", code], env=agents.environ(), capture_output=True, text=True
    )
    assert done.returncode == 0
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("time.sleep(600)", "not started|not within 0 s"),
        ("sys.exit(3)", "not started|"),
        ("pass", "not started|"),
        ("started(); os._exit(3)", "broke off|"),
        ("started(); os.kill(os.getpid(), signal.SIGKILL)", "broke off|ended by signal 9"),
        ("started()", "ended|"),
        # the signal comes, and the child takes no notice, as one that hangs in MPI_Finalize
        ("started(); os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)", "ended|"),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)", "ended|"),
    ],
)
def test_the_part_with_mpi_is_watched(body: str, outcome: str):
    assert watched(body) == (outcome + "\n", "")


@pytest.mark.parametrize(
    ("body", "how", "reason"),
    [
        ("raise OSError('no\\nfabric')", "not started", "OSError: no fabric"),
        ("started(); dict()['x']", "broke off", "KeyError: 'x'"),
        ("started(); raise ValueError('!s' * 9000)", "broke off", f"ValueError: {'!s' * 94}"),
    ],
)
def test_what_the_part_with_mpi_raises_is_printed_and_the_reason(body: str, how: str, reason: str):
    out, err = watched(body)
    assert err == f"hpcprof agent: MPI: {reason}\n"
    assert out == f"{how}|{reason}\n"


HANGING = """
import os, signal, time
from hpcprof.launch.agent import ending
from hpcprof.launch.signals import SignalInbox
{shorter}
started = ending.Ending(SignalInbox())
os.kill(os.getpid(), signal.SIGTERM)
started.stop.wait()
print(started.reason, flush=True)
{then}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("shorter", "then"),
    [
        ("ending.LAST_SECONDS = 0.3", ""),
        (
            "ending.SECOND_AFTER_SECONDS = 0.1",
            "time.sleep(0.3); os.kill(os.getpid(), signal.SIGTERM)",
        ),
    ],
    ids=["the time is over", "a second signal"],
)
def test_an_agent_that_hangs_at_the_end_leaves_with_code_0(shorter: str, then: str):
    code = HANGING.format(shorter=shorter, then=then)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=agents.environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGTERM\n", "")


def test_an_agent_ends_when_whoever_started_it_is_gone(tmp_path: Path):
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stderr=subprocess.DEVNULL);"
        "print(p.pid, flush=True); sys.stdin.read()"
    )
    (tmp_path / "run.json").write_text("{}")
    env = agents.environ() | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    env |= {"SLURMD_NODENAME": "node0"}
    starter = subprocess.Popen(
        [sys.executable, "-c", code, *agents.argv(tmp_path)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    clock = ArtifactPaths(tmp_path).node_clock("node0")
    try:
        agents.wait_until(lambda: len(agents.of_kind(clock, "wall")) > 0)
    finally:
        starter.kill()
        starter.communicate()
    agents.wait_until(lambda: len(agents.of_kind(clock, "end")) > 0)
    assert "gone" in agents.of_kind(clock, "end")[0]["reason"]
