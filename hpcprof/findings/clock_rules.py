"""Rules about the clocks of the nodes: what can be said about order between them."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.align.node_clock import TIGHT, UNCALIBRATED, UTC_ONLY
from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.agent_rules import agent_advice
from hpcprof.findings.model import INFO, NOT_RESOLVABLE, Finding
from hpcprof.findings.registry import rule
from hpcprof.units import duration

_AGENT = "add profile: {agent: auto} to the job spec: an agent on each node then compares them"


@rule
def order_between_nodes_unknown(results: RunResults) -> Iterator[Finding]:
    """Which of two nodes was first cannot be said: nothing but their wall clocks ties them.

    Fires: two nodes, no agent, no collectives; the bound of a wall clock is that of NTP.
    Stays quiet: one node; clocks compared by the agent or by the ends of collectives.
    """
    loose = {n: c for n, c in results.clocks.items() if c.status in (UTC_ONLY, UNCALIBRATED)}
    if len(results.clocks) < 2 or not loose:
        return
    known = [clock.bound_ns for clock in loose.values() if clock.bound_ns is not None]
    doubt = f"less than {duration(2 * max(known))} apart" if known else "at all"
    yield Finding(
        rule="order-between-nodes-unknown",
        level=INFO,
        status=NOT_RESOLVABLE,
        nodes=tuple(sorted(loose)),
        message=f"the order of events between nodes {doubt}: only wall clocks tie them "
        "together; no finding here depends on it",
        advice=agent_advice(results, _AGENT),
    )


@rule
def clocks_contradict_collectives(results: RunResults) -> Iterator[Finding]:
    """Collectives that, by the clocks, end on one node before they begin on another.

    Fires: an agent's clock is off by more than its bound, or a node is taken for another.
    Stays quiet: every collective fits within the bounds of the clocks.
    """
    wrong = {node: c.violations for node, c in results.clocks.items() if c.violations}
    if not wrong:
        return
    worst = max(wrong, key=lambda node: wrong[node])
    yield Finding(
        rule="clocks-contradict-collectives",
        level=INFO,
        status=NOT_RESOLVABLE,
        nodes=tuple(sorted(wrong)),
        message=f"order between nodes is doubtful: by the clocks, {wrong[worst]} times a "
        f"collective ended on one node before it began on another ({worst} most often); nothing "
        "was moved to hide that, and lateness is measured without shared clocks",
        advice="look at the table of clocks for a node whose method or bound differs"
        + agent_advice(results, _AGENT, before="; "),
    )


def clocks_sentence(results: RunResults) -> str:
    """How well order between nodes is known, in words; "" when the rules above speak of it."""
    clocks = results.clocks
    if len(clocks) < 2 or any(c.bound_ns is None or c.violations for c in clocks.values()):
        return ""
    if any(clock.status == UTC_ONLY for clock in clocks.values()):
        return ""
    bound = max(clock.bound_ns or 0 for clock in clocks.values())
    how = " and ".join(sorted({clock.method for clock in clocks.values()}))
    certain = "" if all(c.status == TIGHT for c in clocks.values()) else ", not tight"
    return f"clocks of {len(clocks)} nodes each known to ±{duration(bound)} ({how}{certain})"
