"""Rules about the network between the nodes. They accuse nodes, never ranks."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses import link_rates
from hpcprof.analyses.interconnect import Interconnect
from hpcprof.analyses.link_rates import LinkRates, SlowLink
from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.agent_rules import agent_advice
from hpcprof.findings.model import CRITICAL, INFO, INSUFFICIENT, NOT_COLLECTED, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.findings.thresholds import LINKS_WANTED_FRAC, transfer_level
from hpcprof.trace import columns as c
from hpcprof.units import counted, nbytes, percent

_MPI = "mpi"  # as the agent names it


@rule
def node_link_slow(results: RunResults) -> Iterator[Finding]:
    """One node sends or receives at less than half of the speed that the fastest nodes reach.

    Fires: node2 sends at 12 MB/s, the others at 640 MB/s, and the transfer takes 41 % of the step.
    Stays quiet: all links equally slow; fewer than 3 messages of a node; with two nodes, when both
    directions are alike. Below 5 % of the step it is only told; over TCP it is never critical.
    """
    network = results.interconnect
    for slow in network.links.slow:
        share = network.transfer_frac
        # the transfer is as slow as the slowest link, so that several cannot each have its cost
        claims = slow is network.links.slow[0] and share == share  # not nan
        yield Finding(
            rule="node-link-slow",
            level=_level(network),
            nodes=slow.nodes,
            phase=c.ALLREDUCE,
            cause="interconnect",
            impact_frac=share * (1 - slow.rate_gb_s / slow.typical_gb_s) if claims else None,
            impact_is_limit=claims,
            message=f"{_what_is_slow(slow)}{_way(network.links)}; {_transfer(network)}",
            evidence=tuple(_evidence(network, slow)),
            advice=_advice(slow),
            next=(("recipe", "network"), ("nodes", list(slow.nodes))),
        )


@rule
def node_link_often_slow(results: RunResults) -> Iterator[Finding]:
    """One node sends or receives slowly in three quarters of the measurements, but not in the best.

    Fires: node2 sends slowly in 29 of 30 measurements; only told, as the training may be what it
    was busy with.
    Stays quiet: the link is slow at its best too; fewer than 10 measurements; two nodes.
    """
    links = results.interconnect.links
    for slow in links.often_slow:
        node = slow.nodes[0]
        yield Finding(
            rule="node-link-often-slow",
            level=INFO,
            nodes=slow.nodes,
            phase=c.ALLREDUCE,
            message=f"node {node} {slow.direction} at less than half of {rate(slow.typical_gb_s)}, "
            f"which other nodes reach in most measurements, in {slow.below} of {slow.messages} "
            f"measurements{_way(links)}; at its best moment its link is not slow",
            advice=f"see whether {node} is busy with other traffic than the others, or its link "
            "lost speed in a part of the run (the port's counters, the system log)",
            next=(("recipe", "network"), ("nodes", list(slow.nodes))),
        )


@rule
def slow_links_not_assessed(results: RunResults) -> Iterator[Finding]:
    """The links differ by more than a factor of two, and it cannot be said which nodes are slow.

    Fires: two of three nodes send at 1 GB/s, the third at 12.5 GB/s.
    Stays quiet: a node is named; all nodes are within a factor of two.
    """
    links = results.interconnect.links
    if links.slow or not links.uneven:
        return
    spreads = " and ".join(
        f"{way.removesuffix('s')} at {rate(links.spread_gb_s[way][0])} to "
        f"{rate(links.spread_gb_s[way][1])}"
        for way in links.uneven
    )
    yield Finding(
        rule="slow-links-not-assessed",
        level=INFO,
        status=INSUFFICIENT,
        phase=c.ALLREDUCE,
        message=f"whether a node's link is slow: at their best moment the nodes {spreads} "
        f"(measured by the agent, {transport(links)}); more than half of them are slow, or one "
        "was measured with slow nodes only, or too seldom",
        advice="compare the negotiated speeds of the nodes' ports, or run longer: the agents "
        "measure with other nodes each time",
        next=(("recipe", "network"), ("nodes", list(links.nodes))),
    )


@rule
def links_not_measured(results: RunResults) -> Iterator[Finding]:
    """The transfer takes much of the step, and nobody measured the links between the nodes.

    Fires: transfer takes 30 % of the step on two nodes and the node agent did not run.
    Stays quiet: one node; transfer below 20 % of the step; every node was measured.
    """
    network = results.interconnect
    unmeasured = network.links.unmeasured
    if len(network.links.nodes) < 2 or not unmeasured:
        return
    if not network.transfer_frac >= LINKS_WANTED_FRAC:  # also when it is nan
        return
    all_of_them = len(unmeasured) == len(network.links.nodes)
    which = "between the nodes" if all_of_them else f"of {', '.join(unmeasured)}"
    yield Finding(
        rule="links-not-measured",
        level=INFO,
        status=NOT_COLLECTED,
        nodes=unmeasured,
        phase=c.ALLREDUCE,
        message=f"whether a slow link is the reason: {_transfer(network)}, and the links {which} "
        "were not measured",
        advice=agent_advice(
            results, "let the node agent measure them: profile: {agent: auto} in hpcprof.yaml"
        ),
        next=(("recipe", "network"), ("nodes", list(unmeasured))),
    )


def rate(gb_s: float) -> str:
    """ "12 MB/s"."""
    return f"{nbytes(gb_s * 1e9)}/s"


def transport(links: LinkRates) -> str:
    """ "TCP"; the agent's own word in capitals."""
    return links.transport.upper()


def _what_is_slow(slow: SlowLink) -> str:
    speed, typical = rate(slow.rate_gb_s), rate(slow.typical_gb_s)
    if slow.direction == link_rates.PAIR:
        sender, receiver = slow.nodes
        return (
            f"between {sender} and {receiver}: from {sender} to {receiver} {speed}, back "
            f"{typical}; with two nodes nobody can tell which end it is"
        )
    return f"node {slow.nodes[0]} {slow.direction} at {speed}, where other nodes reach {typical}"


def _level(network: Interconnect) -> str:
    level = transfer_level(network.transfer_frac, network.steps)
    return WARN if level == CRITICAL and network.links.transport != _MPI else level


def _way(links: LinkRates) -> str:
    """What to doubt about the way that was measured, for a sentence about it."""
    if links.transport == _MPI:
        return ""
    return f" (over {transport(links)}, which may not be the fabric that the training uses)"


def _transfer(network: Interconnect) -> str:
    if network.transfer_frac != network.transfer_frac:
        return "what the transfer takes of a step is not known"
    return f"the allreduce transfer takes {percent(network.transfer_frac)} of every step"


def _evidence(network: Interconnect, slow: SlowLink) -> Iterator[str]:
    links = network.links
    yield f"best of {counted(slow.messages, 'message')} between the node agents"
    node = slow.nodes[0]
    if slow.direction != link_rates.PAIR and {node} <= set(links.sends_gb_s) & set(
        links.receives_gb_s
    ):
        yield (
            f"{node} sends at {rate(links.sends_gb_s[node])} and receives at "
            f"{rate(links.receives_gb_s[node])}"
        )
    if links.transport == _MPI:
        yield "measured with MPI, on the fabric MPI chose"
    if network.transfer_frac == network.transfer_frac:
        yield _what_it_costs(links, slow)
    if network.busbw_gb_s is not None:
        yield f"bus bandwidth of the allreduce at least {rate(network.busbw_gb_s)}"


def _what_it_costs(links: LinkRates, slow: SlowLink) -> str:
    if len(links.slow) == 1:
        return "the cost is what a healthy link could save, if the transfer is slow for it alone"
    if slow is links.slow[0]:
        others = ", ".join(link.nodes[0] for link in links.slow[1:])
        return f"the cost is what healthy links could save, counted here for {others} as well"
    return f"its cost is counted with that of {links.slow[0].nodes[0]}, the slowest"


def _advice(slow: SlowLink) -> str:
    if slow.direction == link_rates.PAIR:
        return (
            "run once with one of the two nodes exchanged (sbatch --exclude) to see which end it "
            "is, and ask your admins about cables, switch ports and negotiated speeds"
        )
    return (
        f"leave the node out (sbatch --exclude={slow.nodes[0]}) and ask your admins about its "
        "cable, switch port and negotiated speed"
    )
