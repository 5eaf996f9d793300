"""The trials: which fault, where, in which job. Several trials share a job, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY, SLOW_RANK, SLOW_NODE, SLOW_FILES, SLOW_NETWORK = (
    *("healthy", "slow rank", "slow node"),
    *("slow files", "slow network"),
)
# what the verdict must call it; None: nobody may be accused
CAUSE_OF = {
    HEALTHY: None,
    SLOW_RANK: "compute",
    SLOW_NODE: "compute",
    SLOW_FILES: "input",
    SLOW_NETWORK: "interconnect",
}


@dataclass(frozen=True)
class Trial:
    """One fault from one step to another. ``ranks`` and ``nodes`` are who must be named."""

    fault: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Session:
    """One job of four ranks and the trials in it, in order.

    ``skews``: node → (drift in ppb, offset of the wall clock in ns); other nodes keep theirs.
    ``profiled``: under nsys. ``prefetch``: batches read ahead.
    """

    name: str
    nodes: int
    trials: tuple[Trial, ...]
    skews: dict[str, tuple[int, int]]
    profiled: bool = False
    prefetch: int = 1


_HEALTHY = Trial(HEALTHY)


def _rank(rank: int, ranks_per_node: int = 2) -> Trial:
    return Trial(SLOW_RANK, (rank,), (f"node{rank // ranks_per_node}",))


def _node(node: int) -> Trial:
    return Trial(SLOW_NODE, (2 * node, 2 * node + 1), (f"node{node}",))


def _files(node: int) -> Trial:
    return Trial(SLOW_FILES, (2 * node, 2 * node + 1), (f"node{node}",))


def _network(node: int) -> Trial:
    return Trial(SLOW_NETWORK, (), (f"node{node}",))


SESSIONS = (
    Session(
        "cpu-of-ranks",
        2,
        (_HEALTHY, _rank(0), _rank(3), _HEALTHY, _rank(1), _rank(2)),
        {"node1": (30_000, 40_000_000)},
    ),
    Session(
        "cpu-of-nodes",
        2,
        (_node(1), _HEALTHY, _node(0), _rank(2), _HEALTHY),
        {"node0": (-45_000, -25_000_000), "node1": (20_000, 0)},
    ),
    Session(
        "files",
        2,
        (_files(1), _HEALTHY, _files(0), _HEALTHY),
        {"node1": (-80_000, 15_000_000)},
        prefetch=0,
    ),
    Session(
        "network",
        4,
        (_HEALTHY, _network(1), _network(3), _HEALTHY, _network(0), _network(2)),
        {"node1": (50_000, 0), "node2": (-20_000, 60_000_000), "node3": (5_000, -60_000_000)},
    ),
    Session(
        "one-rank-per-node",
        4,
        (_rank(3, 1), _HEALTHY, _rank(0, 1), _network(1), _rank(2, 1)),
        {"node0": (10_000, 5_000_000), "node2": (-30_000, 0), "node3": (70_000, 20_000_000)},
    ),
    Session(
        "under-nsys",
        2,
        (_HEALTHY, _rank(1), _node(0), _rank(3)),
        {"node1": (25_000, -30_000_000)},
        profiled=True,
    ),
)
