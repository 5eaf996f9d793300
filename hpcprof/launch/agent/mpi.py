"""Agents over MPI: pings and links over the fabric that the training uses, in a job step of ours.

MPI is used by the main thread only. A blocking receive would spin a core that the training needs,
so everything here asks with Iprobe and Test, and sleeps between, except within a burst.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Any, Iterable, Mapping

from hpcprof.artifacts import node_time
from hpcprof.launch.agent.transport import Exchange, PeerSilentError

_PING_TAG, _PONG_TAG, _DATA_TAG, _ACK_TAG = 1, 2, 3, 4
_NUMBER = struct.Struct("!Q")
_PONG = struct.Struct("!Qqq")  # number of the ping, arrived_ns, answered_ns
_NAME_BYTES = 256
_SLEEP_SECONDS = 0.02  # between looks while nobody asks
_TIGHT_SECONDS = 0.005  # after a message the next one of its burst is awaited without sleeping
# the agent touches no GPU; Cray MPICH even aborts when asked for GPUs by a program without them
_WITHOUT_GPUS = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMPI_MCA_opal_cuda_support": "0",
    "MPICH_GPU_SUPPORT_ENABLED": "0",
}
_LARGEST_BYTES = 1024 * 1024 + _NUMBER.size
_PATIENT_SECONDS = 0.05  # an answer that takes longer is awaited with sleeps
_PING_SECONDS = 0.5
_LINK_SECONDS = 3.0


class MpiUnusableError(Exception):
    """MPI started, but not as one world of all agents."""


class MpiTransport:
    """One world of all agents. Create it with ``start``."""

    name = "mpi"
    link_name = "mpi"

    def __init__(self, mpi: Any, nodes: Mapping[int, str]) -> None:
        self.nodes = nodes
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self._number = 0
        self._answers: dict[int, bytes] = {}  # by tag, what the latest answer to us said
        self._heard = 0.0
        # kept, as getting a megabyte takes as long as sending it over a fast fabric
        self._received = bytearray(_LARGEST_BYTES)
        # buffers must live as long as their requests, also of those given up
        self._sending: list[tuple[Any, bytes | memoryview]] = []

    @classmethod
    def start(cls, task: int, tasks: int, node: str, seconds: float) -> MpiTransport:
        """Start MPI and learn the names of all nodes.

        Raises MpiUnusableError, or ImportError without mpi4py. May block or end the process: see
        ``mpi_child``.
        """
        os.environ.update(_WITHOUT_GPUS)
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_FUNNELED)
        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (task, tasks):
            described = f"task {world.rank} of {world.size} instead of {task} of {tasks}"
            MPI.Finalize()
            raise MpiUnusableError(f"MPI calls this {described}")
        return cls(MPI, _names(MPI, node, seconds))

    def seek(self, tasks: Iterable[int]) -> bool:
        """All are known from the start."""
        return all(task in self.nodes for task in tasks)

    def ping(self, task: int) -> Exchange:
        """One round trip. Raises PeerSilentError."""
        self._number += 1
        message = _NUMBER.pack(self._number)
        deadline = time.monotonic() + _PING_SECONDS
        sent = node_time.monotonic_ns()
        self._post(message, task, _PING_TAG)
        while True:
            answer = self._await(_PONG_TAG, task, deadline)
            received = node_time.monotonic_ns()
            number, arrived, answered = _PONG.unpack(answer)
            if number == self._number:  # an older one is the answer to a ping given up
                return Exchange(sent, arrived, answered, received)

    def send(self, task: int, size: int) -> tuple[int, int]:
        """Send a message. Raises PeerSilentError."""
        self._number += 1
        message = _NUMBER.pack(self._number) + bytes(size)
        deadline = time.monotonic() + _LINK_SECONDS
        start = node_time.monotonic_ns()
        self._post(message, task, _DATA_TAG)
        while True:
            answer = self._await(_ACK_TAG, task, deadline)
            duration = node_time.monotonic_ns() - start
            if _NUMBER.unpack(answer)[0] == self._number:
                return start, duration

    def rest(self) -> None:
        """Nothing is kept for a burst."""

    def serve(self, seconds: float, stop: threading.Event) -> None:
        """Answer the others, with a look every 20 ms while they are quiet."""
        until = time.monotonic() + seconds
        while not stop.is_set():
            now = time.monotonic()
            if now >= until:
                return
            if self._look_safely():
                self._heard = time.monotonic()
            elif now - self._heard < _TIGHT_SECONDS:
                os.sched_yield()  # lets the training have the core if it wants it
            else:
                stop.wait(min(_SLEEP_SECONDS, until - now))

    def close(self) -> None:
        """MPI_Finalize, which waits for all tasks."""
        self._mpi.Finalize()

    def _post(self, message: bytes, task: int, tag: int) -> None:
        try:
            self._sending = [entry for entry in self._sending if not entry[0].Test()]
            request = self._world.Isend([message, self._mpi.BYTE], dest=task, tag=tag)
        except self._mpi.Exception as error:
            raise PeerSilentError(f"{self.nodes[task]} cannot be sent to: {error}") from None
        self._sending.append((request, message))

    def _await(self, tag: int, task: int, deadline: float) -> bytes:
        """The next answer with ``tag``. Answers the others meanwhile, or two would wait for
        each other. Raises PeerSilentError."""
        self._answers.pop(tag, None)
        patient_from = time.monotonic() + _PATIENT_SECONDS
        while tag not in self._answers:
            if self._look():
                continue
            now = time.monotonic()
            if now > deadline:
                raise PeerSilentError(f"{self.nodes[task]} does not answer")
            if now > patient_from:
                time.sleep(0.001)
            else:
                os.sched_yield()
        return self._answers.pop(tag)

    def _look_safely(self) -> bool:
        try:
            return self._look()
        except PeerSilentError:
            return False  # who asked will note it

    def _look(self) -> bool:
        """Take one message that has arrived, and answer it if it asks; False when there is none.

        Raises PeerSilentError when the message, or the answer to it, gets lost.
        """
        mpi = self._mpi
        status = mpi.Status()
        if not self._world.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG, status):
            return False
        arrived = node_time.monotonic_ns()
        source, tag = status.Get_source(), status.Get_tag()
        message = self._take(source, tag, status.Get_count(mpi.BYTE))
        if tag == _PING_TAG:
            number = _NUMBER.unpack(message)[0]
            self._post(_PONG.pack(number, arrived, node_time.monotonic_ns()), source, _PONG_TAG)
        elif tag == _DATA_TAG:
            self._post(bytes(message[: _NUMBER.size]), source, _ACK_TAG)
        else:
            self._answers[tag] = bytes(message)
        return True

    def _take(self, source: int, tag: int, size: int) -> memoryview:
        """Receive what was announced; holds until the next call.

        Raises PeerSilentError when the rest does not come.
        """
        if size > len(self._received):
            self._received = bytearray(size)
        message = memoryview(self._received)[:size]
        request = self._world.Irecv([message, self._mpi.BYTE], source=source, tag=tag)
        deadline = time.monotonic() + _LINK_SECONDS
        while not request.Test():
            if time.monotonic() > deadline:
                self._sending.append((request, message))  # it may still be written into
                self._received = bytearray(_LARGEST_BYTES)
                raise PeerSilentError(f"{self.nodes[source]} stopped in the middle of a message")
        return message


def _names(mpi: Any, node: str, seconds: float) -> dict[int, str]:
    """Node name by task; also shows that all of them can talk. Raises MpiUnusableError."""
    world = mpi.COMM_WORLD
    own = node.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    everyone = bytearray(_NAME_BYTES * world.size)
    request = world.Iallgather([own, mpi.BYTE], [everyone, mpi.BYTE])
    deadline = time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > deadline:
            raise MpiUnusableError("not every agent could be reached over MPI")
        time.sleep(0.005)
    names = (everyone[_NAME_BYTES * i : _NAME_BYTES * (i + 1)] for i in range(world.size))
    return {task: bytes(name).rstrip(b"\0").decode() for task, name in enumerate(names)}
