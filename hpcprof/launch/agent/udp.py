"""Agents without MPI: pings over UDP, links over TCP.

Two threads answer; both block in the kernel while nobody asks, so that no core is taken from the
training. Whatever does not carry our token is ignored.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import Callable, Iterable, Mapping

from hpcprof.artifacts import node_time
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch.agent.addresses import TOKEN_BYTES, Address, AddressBook, new_token, own_hosts
from hpcprof.launch.agent.transport import Exchange, PeerSilentError

_PING = struct.Struct(f"!{TOKEN_BYTES}sQ")  # the server's token, a number of the client's choice
_PONG = struct.Struct(f"!{TOKEN_BYTES}sQqq")  # both again, arrived_ns, answered_ns
_HEADER = struct.Struct(f"!{TOKEN_BYTES}sQ")  # the server's token, how many bytes follow
_ACK = b"\x06"
_MOST_BYTES = 16 * 1024 * 1024
_PING_SECONDS = 0.3
_LINK_SECONDS = 3.0
_CONNECT_SECONDS = 1.0
_FOREIGN_SECONDS = 2.0  # how long a connection may keep the server waiting


class UdpTransport:
    """Listens from the start; the peers are found through their files in the run folder."""

    name = "udp"
    link_name = "tcp"

    def __init__(self, paths: ArtifactPaths, task: int, node: str) -> None:
        """Listen and publish the address. Raises OSError."""
        self._book = AddressBook(paths, node)
        self._token = new_token()
        self._routes: dict[int, socket.socket] = {}
        self._links: dict[int, socket.socket] = {}
        pings = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        pings.bind(("", 0))
        links = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        links.bind(("", 0))
        links.listen(16)
        _run_thread(lambda: _answer_pings(pings, self._token))
        _run_thread(lambda: _answer_links(links, self._token))
        ports = pings.getsockname()[1], links.getsockname()[1]
        self._book.publish(Address(task, node, tuple(own_hosts()), *ports, self._token))

    @property
    def nodes(self) -> Mapping[int, str]:
        """Node name by task, of those whose address was read."""
        return {task: address.node for task, address in self._book.known.items()}

    def seek(self, tasks: Iterable[int]) -> bool:
        """Look once into the run folder for these tasks."""
        return self._book.seek(tasks)

    def ping(self, task: int) -> Exchange:
        """One round trip. Raises PeerSilentError."""
        address = self._address(task)
        if task in self._routes:
            return _ping(self._routes[task], address)
        return self._first_ping(address)

    def _address(self, task: int) -> Address:
        if not self._book.seek([task]):
            raise PeerSilentError(f"no address of task {task}")
        return self._book.known[task]

    def _first_ping(self, address: Address) -> Exchange:
        """Try one host address after another; that which answers is kept."""
        for host in address.hosts:
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                client.connect((host, address.udp_port))
                exchange = _ping(client, address)
            except (OSError, PeerSilentError):
                client.close()
                continue
            self._routes[address.task] = client
            return exchange
        raise PeerSilentError(f"{address.node} does not answer at {', '.join(address.hosts)}")

    def send(self, task: int, size: int) -> tuple[int, int]:
        """Send over TCP, connected once per burst. Raises PeerSilentError."""
        address = self._address(task)
        try:
            if task not in self._links:
                self._links[task] = self._connect(address)
            return _send(self._links[task], address, size)
        except OSError as error:
            self.rest()
            raise PeerSilentError(f"{address.node} takes no data: {error}") from None

    def _connect(self, address: Address) -> socket.socket:
        if address.task not in self._routes:
            self._first_ping(address)
        host = self._routes[address.task].getpeername()[0]
        link = socket.create_connection((host, address.tcp_port), timeout=_CONNECT_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(_LINK_SECONDS)
        return link

    def rest(self) -> None:
        """Close the links of this burst: a server serves one connection at a time."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def serve(self, seconds: float, stop: threading.Event) -> None:
        """Sleep: the threads answer."""
        stop.wait(max(seconds, 0.0))

    def close(self) -> None:
        """Nothing to say; the threads end with the process."""
        self.rest()


def _run_thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, daemon=True).start()


def _ping(client: socket.socket, address: Address) -> Exchange:
    """One round trip over a connected socket. Raises PeerSilentError."""
    number = int.from_bytes(os.urandom(8), "big")
    packet = _PING.pack(address.token, number)
    deadline = time.monotonic() + _PING_SECONDS
    try:
        sent = node_time.monotonic_ns()
        client.send(packet)
        while True:
            client.settimeout(max(deadline - time.monotonic(), 0.001))
            answer = client.recv(_PONG.size + 1)
            received = node_time.monotonic_ns()
            if len(answer) == _PONG.size:
                token, number_again, arrived, answered = _PONG.unpack(answer)
                if (token, number_again) == (address.token, number):
                    return Exchange(sent, arrived, answered, received)
            if time.monotonic() > deadline:
                raise PeerSilentError(f"{address.node} does not answer")
    except OSError as error:
        raise PeerSilentError(f"{address.node} does not answer: {error}") from None


def _send(link: socket.socket, address: Address, size: int) -> tuple[int, int]:
    """One message and its acknowledgement. Raises OSError."""
    message = _HEADER.pack(address.token, size) + bytes(size)
    start = node_time.monotonic_ns()
    link.sendall(message)
    if link.recv(1) != _ACK:
        raise ConnectionError("the connection was closed")
    return start, node_time.monotonic_ns() - start


def _answer_pings(server: socket.socket, token: bytes) -> None:
    while True:
        try:
            packet, sender = server.recvfrom(_PING.size + 1)
            arrived = node_time.monotonic_ns()
            if len(packet) != _PING.size or packet[:TOKEN_BYTES] != token:
                continue
            number = _PING.unpack(packet)[1]
            answer = _PONG.pack(token, number, arrived, node_time.monotonic_ns())
            server.sendto(answer, sender)
        except OSError:
            time.sleep(0.1)  # such as no route to the sender; must not become a busy loop


def _answer_links(server: socket.socket, token: bytes) -> None:
    buffer = bytearray(256 * 1024)
    while True:
        try:
            link, _ = server.accept()
        except OSError:
            time.sleep(0.1)
            continue
        with link:
            try:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.settimeout(_FOREIGN_SECONDS)
                while _take_message(link, token, buffer):
                    link.sendall(_ACK)
            except OSError:
                continue  # the client left, or was none of ours


def _take_message(link: socket.socket, token: bytes, buffer: bytearray) -> bool:
    """Receive one message to its end; False when the client left or is none of ours."""
    header = link.recv(_HEADER.size, socket.MSG_WAITALL)
    if len(header) < _HEADER.size:
        return False
    given, missing = _HEADER.unpack(header)
    if given != token or missing > _MOST_BYTES:
        return False
    while missing:
        taken = link.recv_into(buffer, min(missing, len(buffer)))
        if not taken:
            return False
        missing -= taken
    return True
