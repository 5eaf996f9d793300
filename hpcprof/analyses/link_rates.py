"""How fast does each node send and receive, and is one of them slower than the others?

From the messages that the node agents sent to each other beside the training:
1. rate of a message = bytes / (duration - round trip of an empty message). Only the largest
   messages of a pair count, and only when they take twice as long as the empty one: below that
   the rate is made of latency and its noise.
2. rate of an ordered pair = its best message: the training and other jobs can only lower it.
3. a node sends at the best rate of its pairs, and receives at the best of those towards it, so that
   one slow end does not stain its partners.
4. slow: below half of the median over the other nodes, in either direction. That needs three
   nodes; with two only the two directions can be compared, and nobody can tell which end it is.

Says nothing when all links are equally slow, and nothing about a network the agent did not use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hpcprof.trace import columns as c

NODE, PEER, DURATION_NS, ROUND_TRIP_NS = "node", "peer", "duration_ns", "round_trip_ns"
TRANSPORT = "transport"
LINK_COLUMNS = (NODE, PEER, c.BYTES, c.START_NS, DURATION_NS, ROUND_TRIP_NS, TRANSPORT)

SENDS, RECEIVES, PAIR = "sends", "receives", "pair"

# of the other nodes' median. Links negotiate speeds in steps of two and more (10, 25, 40, 100 GbE;
# PCIe and InfiniBand widths), while healthy ones measured beside a training differ by less
SLOW_BELOW_FRAC = 0.5
# per node and direction: one or two may both have met the training's own traffic, and then their
# best says nothing; such a node counts as not measured
MIN_MESSAGES = 3
MIN_NODES = 3


@dataclass(frozen=True)
class SlowLink:
    """A node that ``sends`` or ``receives`` slowly, or (``pair``) the way from one to another.

    ``nodes`` is the node; for a pair the sender and the receiver, either of which may be the cause.
    ``typical_gb_s``: median over the other nodes; for a pair the rate of the way back. A node that
    is slow in both directions is given once, with the worse one. ``messages`` it rests on.
    """

    nodes: tuple[str, ...]
    direction: str
    rate_gb_s: float
    typical_gb_s: float
    messages: int


@dataclass(frozen=True)
class LinkRates:
    """Rates in GB/s (1e9 bytes) by node; a node that was not measured is in no mapping.

    ``transport`` as the agent names it, "" when nothing was measured; ``messages`` that count.
    """

    nodes: tuple[str, ...] = ()
    transport: str = ""
    messages: int = 0
    sends_gb_s: Mapping[str, float] = field(default_factory=dict)
    receives_gb_s: Mapping[str, float] = field(default_factory=dict)
    slow: tuple[SlowLink, ...] = ()

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Nodes of the job whose link is not known in both directions."""
        return tuple(
            n for n in self.nodes if not (n in self.sends_gb_s and n in self.receives_gb_s)
        )


def link_rates(links: pd.DataFrame, nodes: Sequence[str]) -> LinkRates:
    """Rates between ``nodes`` from a table with LINK_COLUMNS; one without rows needs no columns.

    When messages went over several transports, the one with most messages is looked at.
    """
    known = tuple(sorted(nodes))
    rows = _usable(links, known) if len(links) else links
    if not len(rows):
        return LinkRates(known)
    pairs = rows.groupby([NODE, PEER], sort=True)["gb_s"].agg(["max", "size"]).reset_index()
    slow = _slow_way(pairs) if len(known) < MIN_NODES else _slow_nodes(pairs)
    return LinkRates(
        nodes=known,
        transport=str(rows[TRANSPORT].iloc[0]),
        messages=len(rows),
        sends_gb_s=_best(pairs, NODE),
        receives_gb_s=_best(pairs, PEER),
        slow=slow,
    )


def _usable(links: pd.DataFrame, nodes: tuple[str, ...]) -> pd.DataFrame:
    """Largest messages of each pair in which latency does not dominate, with their rate gb_s."""
    # as text: categories of nodes and peers differ, and groups of unused ones would be empty
    links = links.astype(dict.fromkeys((NODE, PEER, TRANSPORT), "object"))
    between = links[NODE].isin(nodes) & links[PEER].isin(nodes) & (links[NODE] != links[PEER])
    rows = links[between & (links[c.BYTES] > 0)]
    if len(rows):
        rows = rows[rows[TRANSPORT] == rows[TRANSPORT].value_counts().sort_index().idxmax()]
    largest = rows.groupby([NODE, PEER])[c.BYTES].transform("max")
    net = rows[DURATION_NS] - rows[ROUND_TRIP_NS]
    rows = rows[(rows[c.BYTES] == largest) & (net >= rows[ROUND_TRIP_NS]) & (net > 0)]
    usable: pd.DataFrame = rows.assign(gb_s=rows[c.BYTES] / net)  # bytes per ns are GB/s
    return usable


def _best(pairs: pd.DataFrame, end: str) -> dict[str, float]:
    """Best rate of each node with enough messages, as a sender (NODE) or receiver (PEER)."""
    by_node = pairs.groupby(end)
    rates = by_node["max"].max()[by_node["size"].sum() >= MIN_MESSAGES]
    return {str(node): float(rate) for node, rate in rates.items()}


def _slow_nodes(pairs: pd.DataFrame) -> tuple[SlowLink, ...]:
    worst: dict[str, SlowLink] = {}
    for direction, end in ((SENDS, NODE), (RECEIVES, PEER)):
        rates = _best(pairs, end)
        counts = pairs.groupby(end)["size"].sum()
        for node, rate in rates.items():
            others = [value for name, value in rates.items() if name != node]
            if len(others) < MIN_NODES - 1:
                continue
            typical = float(np.median(others))
            known = worst.get(node)
            if rate < SLOW_BELOW_FRAC * typical and (
                known is None or rate / typical < known.rate_gb_s / known.typical_gb_s
            ):
                worst[node] = SlowLink((node,), direction, rate, typical, int(counts[node]))
    return tuple(worst[node] for node in sorted(worst))


def _slow_way(pairs: pd.DataFrame) -> tuple[SlowLink, ...]:
    if len(pairs) < 2 or pairs["size"].min() < MIN_MESSAGES:
        return ()
    slow, back = (pairs.iloc[i] for i in np.argsort(pairs["max"].to_numpy(), kind="stable"))
    if slow["max"] >= SLOW_BELOW_FRAC * back["max"]:
        return ()
    way = (str(slow[NODE]), str(slow[PEER]))
    return (SlowLink(way, PAIR, float(slow["max"]), float(back["max"]), int(slow["size"])),)
