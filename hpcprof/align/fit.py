"""Puts the nodes of a job on one clock: for each the best method its files allow.

The job's clock is the reference node's CLOCK_MONOTONIC, moved to where its wall clock was. A node
is aligned by its agent's exchanges; else by ends of collectives; else by its wall clock, which
says nothing but what NTP promises. Collectives also check what the agents found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hpcprof.align import agent_clock, collective_clock, wall_clock
from hpcprof.align.causality import contradicted, per_node
from hpcprof.align.drift import RHO_PPB
from hpcprof.align.node_clock import BOUNDED, TIGHT, UNCALIBRATED, UTC_ONLY, NodeClock
from hpcprof.errors import InputError
from hpcprof.trace.columns import AFTER_NS, BEFORE_NS, END_NS, SENT_NS, START_NS

Anchors = Mapping[str, Mapping[int, pd.DataFrame]]


@dataclass(frozen=True)
class _Given:
    """What there is to align by. ``ends`` is ``causality.per_node``."""

    anchors: Anchors
    exchanges: Mapping[str, pd.DataFrame]
    ends: Mapping[str, pd.DataFrame]

    def nodes(self, reference: str | None) -> list[str]:
        """Every node anybody mentions: those with anchors first, as given."""
        named = [*self.anchors, *self.exchanges, *self.ends]
        if reference is not None and self.exchanges:
            named.append(reference)
        return list(dict.fromkeys(named))

    def run_ns(self, node: str) -> tuple[int, int] | None:
        """First and last time known of a node, on its clock; None when nothing is."""
        times = [
            int(moment)
            for table in self.anchors.get(node, {}).values()
            if len(table)
            for moment in (table[BEFORE_NS].min(), table[AFTER_NS].max())
        ]
        if node in self.exchanges and len(self.exchanges[node]):
            table = self.exchanges[node]
            times += [int(table[SENT_NS].min()), int(table[SENT_NS].max())]
        if node in self.ends:
            table = self.ends[node]
            times += [int(table[START_NS].min()), int(table[END_NS].max())]
        return (min(times), max(times)) if times else None


def fit_nodes(
    anchors: Anchors,
    exchanges: Mapping[str, pd.DataFrame] | None = None,
    reference: str | None = None,
    collectives: pd.DataFrame | None = None,
    node_of: Mapping[int, str] | None = None,
) -> dict[str, NodeClock]:
    """One clock per node.

    ``anchors``: node -> rank -> table; ``exchanges``: node -> table with
    ``trace.columns.EXCHANGE_COLUMNS``, against the node ``reference``; ``collectives``: symmetric
    ones only, with columns rank, step, seq, start_ns, end_ns on the clocks of their nodes
    (``node_of``: rank -> node). A node that nothing ties to the others is ``uncalibrated``. With
    one node its clock is the job's. Raises ValueError when exchanges come without a reference.
    """
    if exchanges and reference is None:
        raise ValueError("exchanges mean nothing without the node they were made with")
    ends = {} if collectives is None or node_of is None else per_node(collectives, node_of)
    given = _Given(anchors, exchanges or {}, ends)
    nodes = given.nodes(reference)
    walls = wall_clock.fit_nodes({node: anchors.get(node, {}) for node in nodes})
    if len(nodes) < 2:
        return walls
    notes: dict[str, list[str]] = {node: [] for node in nodes}
    aligned = _aligned(given, nodes, reference, notes)
    clocks = _on_one_clock(walls, aligned, given) if len(aligned) > 1 else walls
    counts = contradicted(given.ends, clocks)
    return {
        node: replace(
            clock,
            warnings=(*clock.warnings, *notes[node]),
            violations=counts.get(node, 0),
        )
        for node, clock in clocks.items()
    }


def job_start(clocks: Mapping[str, NodeClock], anchors: Anchors) -> int:
    """The job's t0: the earliest anchor of any rank, on the job's clock before t0 is taken off.

    A recorder makes its first anchor when it opens, so that its spans come later; what another
    source saw before that has negative times. No anchor at all gives 0.
    """
    first = [
        int(clocks[node].to_job(table[BEFORE_NS].to_numpy()).min())
        for node, per_rank in anchors.items()
        for table in per_rank.values()
        if len(table)
    ]
    return min(first, default=0)


def _aligned(
    given: _Given, nodes: list[str], reference: str | None, notes: dict[str, list[str]]
) -> dict[str, NodeClock]:
    """Clocks against the reference node's CLOCK_MONOTONIC, of the nodes where that is possible.

    Adds to ``notes`` why a better method did not work. The reference comes first.
    """
    by_agent = {} if reference is None else _by_agent(given, nodes, reference, notes)
    if not by_agent and given.ends and reference not in given.ends:
        reference = max(sorted(given.ends), key=lambda node: len(given.ends[node]))
    if reference is None:
        return {}
    method, status = (agent_clock.METHOD, TIGHT) if by_agent else (collective_clock.METHOD, BOUNDED)
    own = NodeClock(reference, 0, 0, 0, 1, method, status, rho_ppb=RHO_PPB)
    aligned = {reference: own, **by_agent}
    for node in nodes:
        if node != reference and node in given.ends:
            _by_collectives(given, node, aligned, notes[node])
    return aligned


def _by_agent(
    given: _Given, nodes: list[str], reference: str, notes: dict[str, list[str]]
) -> dict[str, NodeClock]:
    """Clocks of the nodes whose agents exchanged something with the reference's."""
    found = {}
    for node, table in given.exchanges.items():
        if node != reference:
            try:
                found[node] = agent_clock.fit(node, table, given.run_ns(node) or (0, 0))
            except InputError as error:
                notes[node].append(str(error))
    for node in nodes if found else ():
        if node not in given.exchanges and node != reference:
            notes[node].append(f"node {node}: its agent left no exchange with the reference")
    return found


def _by_collectives(
    given: _Given, node: str, aligned: dict[str, NodeClock], notes: list[str]
) -> None:
    """Check the node's clock by collectives, or align it by them when it has none yet."""
    known = aligned.get(node)
    base, shared = _base(given.ends, node, aligned)
    if known is not None and shared < collective_clock.FEWEST:
        return  # too few to check anything by
    try:
        found = collective_clock.fit(node, given.ends, base, given.run_ns(node) or (0, 0))
    except InputError as error:
        notes.append(str(error))
        return
    if known is None:
        aligned[node] = found
    else:
        notes += _disagreement(known, found)


def _base(
    ends: Mapping[str, pd.DataFrame], node: str, aligned: Mapping[str, NodeClock]
) -> tuple[NodeClock, int]:
    """The aligned node to compare ``node`` with, and how many collectives they share.

    The reference when they share enough: its own clock adds no error.
    """
    most = -1
    for name, clock in aligned.items():
        if name == node:
            continue
        shared = 0 if name not in ends else len(ends[name].index.intersection(ends[node].index))
        if shared > most:
            base, most = clock, shared
        if most >= collective_clock.FEWEST:
            break
    return base, most


def _disagreement(agent: NodeClock, collective: NodeClock) -> list[str]:
    """A warning when the two methods contradict each other by more than both bounds."""
    if collective.curve is None:
        return []
    times = collective.curve.times_ns
    apart = np.abs(agent.to_job(times) - collective.to_job(times))
    excess = apart - agent.bound_at(times) - collective.bound_at(times)
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return []
    at = times[worst : worst + 1]
    bounds = [int(clock.bound_at(at)[0]) / 1e6 for clock in (agent, collective)]
    return [
        f"node {agent.node}: its agent's exchanges and the ends of collectives put its clock "
        f"{int(apart[worst]) / 1e6:.3f} ms apart, yet claim to know it to ±{bounds[0]:.3f} and "
        f"±{bounds[1]:.3f} ms. One of them is wrong; the agent's is used."
    ]


def _on_one_clock(
    walls: Mapping[str, NodeClock], aligned: Mapping[str, NodeClock], given: _Given
) -> dict[str, NodeClock]:
    """Aligned nodes moved to where the wall clock was; the others by their wall clocks."""
    origin, doubt = _wall_origin(walls, aligned, given)
    clocks = {}
    for node, wall in walls.items():
        if node in aligned:
            clocks[node] = aligned[node].shifted(origin)
        elif wall.status == UTC_ONLY and wall.bound_ns is not None:
            clocks[node] = replace(wall, bound_ns=wall.bound_ns + doubt)
        else:
            clocks[node] = wall
    return clocks


def _wall_origin(
    walls: Mapping[str, NodeClock], aligned: Mapping[str, NodeClock], given: _Given
) -> tuple[int, int]:
    """Wall clock minus the reference's CLOCK_MONOTONIC, and the doubt of that (ns).

    From the anchors of the reference, which comes first, else from those of the first node that
    has any; 0 when no aligned node has one.
    """
    for node, clock in aligned.items():
        wall, run = walls[node], given.run_ns(node)
        if wall.status != UNCALIBRATED and wall.bound_ns is not None and run is not None:
            first = np.array([run[0]], dtype=np.int64)
            doubt = max(wall.bound_ns - wall_clock.NTP_ERROR_NS, 0) + int(clock.bound_at(first)[0])
            return wall.offset_ns - int(clock.to_job(first)[0] - first[0]), doubt
    return 0, 0
