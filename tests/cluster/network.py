"""The nodes' network: one bridge, one veth pair per node, one private /24."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import time
from pathlib import Path

from .errors import ClusterError
from .layout import Layout
from .processes import run_helper
from .state import Resource, record


def free_subnet(layout: Layout) -> str:
    """First three numbers of a /24 that no address or route of this machine touches."""
    third = int(layout.id, 16) % 256
    taken = _networks_in_use(layout)
    for second in (88, *range(200, 255)):
        candidate = ipaddress.IPv4Network(f"10.{second}.{third}.0/24")
        if not any(candidate.overlaps(network) for network in taken):
            return f"10.{second}.{third}"
    raise ClusterError("no free private network found for the nodes (looked through 10.0.0.0/8)")


def address(subnet: str, index: int) -> str:
    """Address of node `index`; the host has number 1 on the bridge."""
    return f"{subnet}.{10 + index}"


def create_bridge(layout: Layout, subnet: str) -> None:
    """The switch all nodes hang on, with the host's own address."""
    record(layout, Resource(kind="link", name=layout.bridge))
    run_helper(layout, "ip", "link", "add", layout.bridge, "type", "bridge")
    run_helper(layout, "ip", "addr", "add", f"{subnet}.1/24", "dev", layout.bridge)
    run_helper(layout, "ip", "link", "set", layout.bridge, "up")


def connect_node(layout: Layout, index: int, pid: int) -> None:
    """Give the network namespace of `pid` an `eth0` whose other end is on the bridge."""
    _wait_for_own_network(pid)
    name = layout.veth(index)
    record(layout, Resource(kind="link", name=name))
    run_helper(
        layout, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid)
    )
    run_helper(layout, "ip", "link", "set", name, "master", layout.bridge, "up")


def links_of(layout: Layout) -> list[str]:
    """Names of the cluster's links that exist on the host, whatever the record says."""
    prefixes = (layout.bridge, layout.veth(0)[:-1])
    return [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith(prefixes)]


def delete_links(layout: Layout) -> None:
    """Remove bridge and links; the ends inside the nodes go with them."""
    for name in links_of(layout):
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _networks_in_use(layout: Layout) -> list[ipaddress.IPv4Network]:
    routes = json.loads(
        run_helper(layout, "ip", "-json", "-4", "route", "show", "table", "all") or "[]"
    )
    known = (route.get("dst", "default") for route in routes)
    return [
        ipaddress.IPv4Network(dst, strict=False)
        for dst in known
        if dst != "default" and not dst.startswith(("224.", "127.", "0.0.0.0"))
    ]


def _wait_for_own_network(pid: int, timeout: float = 10.0) -> None:
    host = Path("/proc/self/ns/net").stat().st_ino
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/ns/net").stat().st_ino != host:
                return
        except OSError:
            break
        time.sleep(0.01)
    raise ClusterError("the node ended before it had a network")
