"""Node clocks that differ as those of real machines do: by an offset, and by their rate.

All nodes of this cluster run on one oscillator and share one wall clock, so a broken alignment
would never show. `skewed_clocks` gives jobs the test clocks of `hpcprof.artifacts.node_time`, and
the test the truth about them. Only what hpcprof itself stamps is skewed: TensorFlow, nsys and
Slurm go on reading the kernel's clocks.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.artifacts.node_time import TEST_CLOCK

if TYPE_CHECKING:
    from .cluster import Cluster

_BILLION = 1_000_000_000


@dataclass(frozen=True)
class ClockSkew:
    """How a node's clocks go wrong; zeros are a true clock.

    Both clocks gain `ppb` nanoseconds per second from the beginning of the fault (a loss if
    negative); the wall clock is besides that `realtime_offset_ns` ahead of the others'.
    """

    monotonic_ppb: int = 0
    realtime_offset_ns: int = 0

    def __post_init__(self) -> None:
        if self.monotonic_ppb <= -_BILLION:
            raise ValueError(f"a clock that loses {-self.monotonic_ppb} ppb stands still")


@dataclass(frozen=True)
class NodeClock:
    """What a node's skewed clocks show at each reading of the host's CLOCK_MONOTONIC.

    `ahead_ns`: how far the node's time namespace is ahead of the host's; `origin_ns`: reading of
    the node's own CLOCK_MONOTONIC at which skewed and true clock agree.
    """

    ahead_ns: int
    origin_ns: int
    skew: ClockSkew = ClockSkew()

    def monotonic_ns(self, host_ns: int) -> int:
        """The skewed CLOCK_MONOTONIC, by the formula of `hpcprof.artifacts.node_time`."""
        return host_ns + self.ahead_ns + self.gained_ns(host_ns)

    def realtime_ahead_ns(self, host_ns: int) -> int:
        """How far the skewed wall clock is ahead of the host's wall clock."""
        return self.skew.realtime_offset_ns + self.gained_ns(host_ns)

    def gained_ns(self, host_ns: int) -> int:
        """Nanoseconds gained by rate alone since the origin, rounded down."""
        elapsed = host_ns + self.ahead_ns - self.origin_ns
        return elapsed * self.skew.monotonic_ppb // _BILLION

    def host_monotonic_ns(self, skewed_ns: int) -> int:
        """Inverse of `monotonic_ns`: the earliest host reading that shows at least `skewed_ns`.

        Neighbouring nanoseconds may show the same on a clock that loses; this is the first then.
        """
        shown = skewed_ns - self.origin_ns
        # rounded up, because `monotonic_ns` rounds down
        elapsed = -(-shown * _BILLION // (_BILLION + self.skew.monotonic_ppb))
        return self.origin_ns + elapsed - self.ahead_ns


@dataclass(frozen=True)
class SkewedClocks:
    """The fault in force: `env` for the jobs that are to have it, and the truth by node name."""

    env: dict[str, str]
    nodes: Mapping[str, NodeClock]

    def true_offset_ns(self, node_a: str, node_b: str, monotonic_a_ns: int) -> int:
        """What to add to a skewed CLOCK_MONOTONIC of `node_a` to get `node_b`'s at that instant.

        Exact, but for the nanosecond or so in which a clock that loses shows the same reading.
        """
        host_ns = self.nodes[node_a].host_monotonic_ns(monotonic_a_ns)
        return self.nodes[node_b].monotonic_ns(host_ns) - monotonic_a_ns

    def host_monotonic_ns(self, node: str, skewed_ns: int) -> int:
        """The host's CLOCK_MONOTONIC when `node`'s skewed one showed `skewed_ns`."""
        return self.nodes[node].host_monotonic_ns(skewed_ns)


@contextlib.contextmanager
def skewed_clocks(cluster: Cluster, skews: Mapping[str, ClockSkew]) -> Iterator[SkewedClocks]:
    """Let hpcprof's clocks differ between nodes, in jobs that get `.env` of what this yields.

    Nodes that are not named keep their true clocks. The file behind it goes at the end of the
    block: a process of hpcprof that starts later with this environment fails at once, rather
    than running with clocks nobody knows. Raises ValueError for a node that does not exist.
    """
    if strangers := sorted(set(skews) - set(cluster.nodes)):
        raise ValueError(f"no such node: {', '.join(strangers)}; there are {cluster.nodes}")
    clocks = _clocks_from_now(cluster, skews)
    wanted = {
        node: {
            "origin_ns": clocks[node].origin_ns,
            "monotonic_ppb": skew.monotonic_ppb,
            "realtime_offset_ns": skew.realtime_offset_ns,
        }
        for node, skew in skews.items()
    }
    with tempfile.NamedTemporaryFile(
        "w", prefix="clocks-", suffix=".json", dir=cluster.shared, encoding="utf-8"
    ) as file:
        json.dump(wanted, file)
        file.flush()
        yield SkewedClocks(env={TEST_CLOCK: file.name}, nodes=clocks)


def namespace_offset_ns(timens_offsets: str) -> int:
    """CLOCK_MONOTONIC's offset in the text of a /proc/PID/timens_offsets (man time_namespaces)."""
    for line in timens_offsets.splitlines():
        name, seconds, nanoseconds = line.split()
        # kernels before 5.8 print the number of the clock
        if name in ("monotonic", "1"):
            return int(seconds) * _BILLION + int(nanoseconds)
    raise ValueError(f"no monotonic clock in {timens_offsets!r}")


def _clocks_from_now(cluster: Cluster, skews: Mapping[str, ClockSkew]) -> dict[str, NodeClock]:
    """The clocks of all nodes, skewed from this instant on."""
    now = time.monotonic_ns()
    # the kernel counts from the first namespace, and a container may have one of its own
    own = namespace_offset_ns(Path("/proc/self/timens_offsets").read_text())
    clocks = {}
    for node in cluster.nodes:
        offsets = Path(f"/proc/{cluster.node_pid(node)}/timens_offsets").read_text()
        ahead = namespace_offset_ns(offsets) - own
        clocks[node] = NodeClock(ahead, now + ahead, skews.get(node, ClockSkew()))
    return clocks
