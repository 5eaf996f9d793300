"""Where agents listen: each leaves a file in the run folder, the others read it there."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any, Iterable, NamedTuple

from hpcprof.artifacts.atomic import read_json, write_json
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.errors import InputError

TOKEN_BYTES = 16
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
# networks within a node, of containers and virtual machines: they lead nowhere
_WITHIN_NODE = ("docker", "veth", "br-", "virbr", "cni", "cali", "podman")
_MOST_HOSTS = 4  # each costs the others a wait when it cannot be reached
_ADDRESS_AT = 20  # of struct ifreq: name (16), family (2), port (2), address (4)


class Address(NamedTuple):
    """How to reach one agent. Who knows ``token`` could read its file, so is the same user."""

    task: int
    node: str
    hosts: tuple[str, ...]
    udp_port: int
    tcp_port: int
    token: bytes


def own_hosts() -> list[str]:
    """IPv4 addresses of this node's interfaces that others may reach, in the kernel's order.

    The host's name is not asked for: /etc/hosts often gives it 127.0.1.1. Loopback is named only
    when there is nothing else, where it serves agents of one machine.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in _interfaces():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            found.append(socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4]))
    reachable = [host for host in found if not host.startswith("127.")]
    return reachable[:_MOST_HOSTS] or ["127.0.0.1"]


def _interfaces() -> list[str]:
    names = [name for _, name in socket.if_nameindex()]
    return sorted(names, key=lambda name: name.startswith(_WITHIN_NODE))


class AddressBook:
    """The addresses of a job's agents, read from the run folder as they appear."""

    def __init__(self, paths: ArtifactPaths, node: str) -> None:
        self._paths = paths
        self._node = node
        self._read: set[str] = set()
        self.known: dict[int, Address] = {}

    def publish(self, address: Address) -> None:
        """Write our own address. Raises OSError."""
        record = {**address._asdict(), "hosts": list(address.hosts), "token": address.token.hex()}
        write_json(self._paths.node_address(address.node), record)
        self.known[address.task] = address
        self._read.add(address.node)

    def seek(self, tasks: Iterable[int]) -> bool:
        """Look once for the tasks that are not known yet; True when all of them are known.

        Stops reading as soon as they are: thousand nodes must not read thousand files each.
        """
        wanted = set(tasks)
        if wanted <= self.known.keys():
            return True
        try:
            names = self._likely_first(self._paths.node_names())
        except OSError:
            return False
        for name in names:
            self._look(name)
            if wanted <= self.known.keys():
                return True
        return False

    def _likely_first(self, names: list[str]) -> list[str]:
        """Tasks mostly follow the order of names: the reference is first, neighbours are next."""
        after = [name for name in names if name > self._node]
        before = [name for name in names if name < self._node]
        ordered = before[:1] + after + before[1:]
        return [name for name in ordered if name not in self._read]

    def _look(self, name: str) -> None:
        try:
            record = read_json(self._paths.node_address(name), "address of an agent")
            address = _parse(record)
        except (InputError, KeyError, TypeError, ValueError):
            return  # not there yet: network file systems show a file late
        self._read.add(name)
        self.known[address.task] = address


def new_token() -> bytes:
    """A secret that nobody can guess."""
    return os.urandom(TOKEN_BYTES)


def _parse(record: dict[str, Any]) -> Address:
    token = bytes.fromhex(record["token"])
    if len(token) != TOKEN_BYTES:
        raise ValueError("token of a wrong length")
    hosts = tuple(str(host) for host in record["hosts"])
    ports = int(record["udp_port"]), int(record["tcp_port"])
    return Address(int(record["task"]), str(record["node"]), hosts, *ports, token)
