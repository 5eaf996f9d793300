"""How fast does each node send and receive, and is one of them slower than the others?

From the messages that the node agents sent to each other beside the training:
1. rate of a message = bytes / (duration - round trip of an empty message). Only the largest
   messages of a pair count, and only when they take twice as long as the empty one: below that
   the rate is made of latency and its noise.
2. a node sends at the rate of its best message, and receives at the best of those towards it: the
   training and other jobs can only lower it, and one slow end does not stain its partners.
3. yardstick of a direction: what the fastest quarter of the nodes reach, at least two of them.
   Slow nodes do not move it while they are half of the nodes or fewer (2 of 4, 3 of 6), nor does
   one freak measurement. When more than half are below the limit, nobody is accused.
4. slow: below half of the yardstick, and below half of an ordinary message (the median) of the
   nodes that are not, in messages with peers that somebody else reaches at half of it or more;
   else the peers may be the cause, and the node counts as not measured. Who met such peers only
   after the first burst, when the training communicates, is held to what others reach then.
5. often slow: the same with the rate that only a quarter of a node's messages exceed, and with the
   last message of each burst, as a slow link is not sent the large one.

It takes three nodes; with two only the two directions can be compared, and nobody can tell which
end it is. Says nothing when all links are equally slow, and nothing about a network the agent did
not use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.trace import columns as c

NODE, PEER, DURATION_NS, ROUND_TRIP_NS = "node", "peer", "duration_ns", "round_trip_ns"
TRANSPORT = "transport"
LINK_COLUMNS = (NODE, PEER, c.BYTES, c.START_NS, DURATION_NS, ROUND_TRIP_NS, TRANSPORT)

SENDS, RECEIVES, PAIR = "sends", "receives", "pair"

# of the yardstick. Links negotiate speeds in steps of two and more (10, 25, 40, 100 GbE;
# PCIe and InfiniBand widths), while healthy ones measured beside a training differ by less
SLOW_BELOW_FRAC = 0.5
# per node and direction: one or two may both have met the training's own traffic, and then their
# best says nothing; such a node counts as not measured
MIN_MESSAGES = 3
# to accuse: on busy processors (test cluster, beside a training) up to five messages in a row were
# slow by chance, for the receiver was not there to take them
MIN_MESSAGES_TO_ACCUSE = 6
MIN_NODES = 3

_BEST = 1.0
# three quarters of a node's messages are slow. Where half of the nodes are, at most two thirds of
# the messages of a healthy one go to them
_OFTEN = 0.75
_MIN_OFTEN_MESSAGES = 10

_GB_S = "gb_s"
_LAST = "is_last"  # of its burst: sizes grow within one
_FIRST = "is_first"  # in the first burst of its sender
_FIRST_BURST_NS = 5_000_000_000  # what the agent gives it at most
_ENDS = {SENDS: (NODE, PEER), RECEIVES: (PEER, NODE)}


@dataclass(frozen=True)
class SlowLink:
    """A node that ``sends`` or ``receives`` slowly, or (``pair``) the way from one to another.

    ``nodes`` is the node; for a pair the sender and the receiver, either of which may be the cause.
    ``typical_gb_s``: what the fastest nodes reach; for a pair the rate of the way back. A node that
    is slow in both directions is given once, with the worse one. ``messages`` it rests on, of which
    ``below`` have less than half of the typical rate.
    """

    nodes: tuple[str, ...]
    direction: str
    rate_gb_s: float
    typical_gb_s: float
    messages: int
    below: int


@dataclass(frozen=True)
class LinkRates:
    """Rates in GB/s (1e9 bytes) by node; a node that was not measured is in no mapping.

    ``transport`` as the agent names it, "" when nothing was measured; ``messages`` that count.
    ``spread_gb_s``: direction → slowest and fastest node, with those that only their peers may have
    slowed. ``often_slow``: nodes that are not in ``slow`` but slow in most of the run.
    """

    nodes: tuple[str, ...] = ()
    transport: str = ""
    messages: int = 0
    sends_gb_s: Mapping[str, float] = field(default_factory=dict)
    receives_gb_s: Mapping[str, float] = field(default_factory=dict)
    spread_gb_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    slow: tuple[SlowLink, ...] = ()
    often_slow: tuple[SlowLink, ...] = ()

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Nodes of the job whose link is not known in both directions."""
        return tuple(
            n for n in self.nodes if not (n in self.sends_gb_s and n in self.receives_gb_s)
        )

    @property
    def uneven(self) -> tuple[str, ...]:
        """Directions in which the slowest node has less than half of the fastest one's rate."""
        return tuple(
            direction
            for direction, (slowest, fastest) in self.spread_gb_s.items()
            if slowest < SLOW_BELOW_FRAC * fastest
        )


@dataclass(frozen=True)
class _Verdict:
    """One direction: rate of all nodes and of those whose peers are not to blame, and the slow."""

    seen: dict[str, float]
    rates: dict[str, float]
    slow: tuple[SlowLink, ...] = ()


def link_rates(links: pd.DataFrame, nodes: Sequence[str]) -> LinkRates:
    """Rates between ``nodes`` from a table with LINK_COLUMNS; one without rows needs no columns.

    When messages went over several transports, the one with most messages is looked at.
    """
    known = tuple(sorted(nodes))
    rows = _usable(links, known) if len(links) else links
    if not len(rows):
        return LinkRates(known)
    largest = rows[rows[c.BYTES] == rows.groupby([NODE, PEER])[c.BYTES].transform("max")]
    best = {way: _judged(largest, way, _BEST, MIN_MESSAGES) for way in _ENDS}
    often = [_judged(rows[rows[_LAST]], way, _OFTEN, _MIN_OFTEN_MESSAGES) for way in _ENDS]
    slow = _slow_way(largest) if len(known) < MIN_NODES else _worst_of_each(best.values())
    accused = {link.nodes for link in slow}
    return LinkRates(
        nodes=known,
        transport=str(rows[TRANSPORT].iloc[0]),
        messages=len(largest),
        sends_gb_s=best[SENDS].rates,
        receives_gb_s=best[RECEIVES].rates,
        spread_gb_s={
            way: (min(found.seen.values()), max(found.seen.values()))
            for way, found in best.items()
            if found.seen
        },
        slow=slow,
        often_slow=tuple(k for k in _worst_of_each(often) if k.nodes not in accused),
    )


def _usable(links: pd.DataFrame, nodes: tuple[str, ...]) -> pd.DataFrame:
    """Messages between ``nodes`` in which latency does not dominate, with their rate gb_s."""
    # as text: categories of nodes and peers differ, and groups of unused ones would be empty
    links = links.astype(dict.fromkeys((NODE, PEER, TRANSPORT), "object"))
    between = links[NODE].isin(nodes) & links[PEER].isin(nodes) & (links[NODE] != links[PEER])
    rows = links[between & (links[c.BYTES] > 0)]
    if len(rows):
        rows = rows[rows[TRANSPORT] == rows[TRANSPORT].value_counts().sort_index().idxmax()]
    rows = rows.sort_values([NODE, PEER, c.START_NS, c.BYTES], kind="stable")
    first = rows[c.START_NS] - rows.groupby(NODE)[c.START_NS].transform("min") < _FIRST_BURST_NS
    following = rows.groupby([NODE, PEER])[c.BYTES].shift(-1, fill_value=0)
    net = rows[DURATION_NS] - rows[ROUND_TRIP_NS]
    # bytes per ns are GB/s
    rows = rows.assign(
        **{_GB_S: rows[c.BYTES] / net, _LAST: following <= rows[c.BYTES], _FIRST: first}
    )
    usable: pd.DataFrame = rows[(net >= rows[ROUND_TRIP_NS]) & (net > 0)]
    return usable


def _judged(rows: pd.DataFrame, direction: str, quantile: float, least: int) -> _Verdict:
    """Who is slow in a direction, by a quantile of the rates of at least so many messages."""
    end, other = _ENDS[direction]
    seen = _rates(rows, [end], quantile, least)
    limit = _limit(seen)
    low = [node for node, rate in seen.items() if rate < limit]
    pairs = _rates(rows, [end, other], quantile, 1)
    # peers that can do better: somebody else reaches them fast
    able = {peer for (node, peer), rate in pairs.items() if rate >= limit and node not in low}
    fair = rows[rows[end].isin(low) & rows[other].isin(able)]
    later = min(limit, _limit(_rates(rows[~rows[_FIRST]], [end], quantile, least)))
    early = set(fair[fair[_FIRST]][end])
    # the best of few messages may be held against a lucky one; ordinary ones are not luck
    others = rows[~rows[end].isin(low) & rows[other].isin(able)]
    ordinary = SLOW_BELOW_FRAC * float(others[_GB_S].median())
    slow = tuple(
        SlowLink(
            (node,),
            direction,
            rate,
            limit / SLOW_BELOW_FRAC,
            int((fair[end] == node).sum()),
            int(((fair[end] == node) & (fair[_GB_S] < limit)).sum()),
        )
        for node, rate in _rates(fair, [end], quantile, max(least, MIN_MESSAGES_TO_ACCUSE)).items()
        if rate < min(ordinary, limit if node in early else later)
    )
    doubtful = set(low) - {link.nodes[0] for link in slow}
    rates = {node: rate for node, rate in seen.items() if node not in doubtful}
    return _Verdict(seen, rates, slow if 2 * len(slow) <= len(seen) else ())


def _rates(rows: pd.DataFrame, by: list[str], quantile: float, least: int) -> dict[Any, float]:
    """Quantile of gb_s by group (a name, or a tuple of them) with at least so many messages."""
    groups = rows.groupby(by if len(by) > 1 else by[0])[_GB_S]
    # a rate that was measured, not one between a slow and a fast message
    rates = groups.quantile(quantile, interpolation="higher")[groups.size() >= least]
    return {key: float(rate) for key, rate in rates.items()}


def _limit(rates: Mapping[str, float]) -> float:
    """Half of the yardstick; 0 with too few nodes."""
    if len(rates) < MIN_NODES:
        return 0.0
    return SLOW_BELOW_FRAC * sorted(rates.values(), reverse=True)[max(2, len(rates) // 4) - 1]


def _worst_of_each(verdicts: Iterable[_Verdict]) -> tuple[SlowLink, ...]:
    """Each slow node once, the slowest first."""
    found = [link for verdict in verdicts for link in verdict.slow]
    found.sort(key=lambda link: (link.rate_gb_s / link.typical_gb_s, link.nodes))
    worst: dict[tuple[str, ...], SlowLink] = {}
    for link in found:
        worst.setdefault(link.nodes, link)
    return tuple(worst.values())


def _slow_way(rows: pd.DataFrame) -> tuple[SlowLink, ...]:
    groups = rows.groupby([NODE, PEER], sort=True)[_GB_S]
    pairs = groups.agg(["max", "median", "size"]).reset_index()
    if len(pairs) < 2 or pairs["size"].min() < MIN_MESSAGES_TO_ACCUSE:
        return ()
    slow, back = (pairs.iloc[i] for i in np.argsort(pairs["max"].to_numpy(), kind="stable"))
    # as among more nodes: against an ordinary message of the way back, not a lucky one
    if slow["max"] >= SLOW_BELOW_FRAC * back["median"]:
        return ()
    way = (str(slow[NODE]), str(slow[PEER]))
    count = int(slow["size"])
    return (SlowLink(way, PAIR, float(slow["max"]), float(back["max"]), count, count),)
