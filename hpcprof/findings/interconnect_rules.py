"""Rules about the network between the nodes. They accuse nodes, never ranks."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses import link_rates
from hpcprof.analyses.interconnect import Interconnect
from hpcprof.analyses.link_rates import LinkRates, SlowLink
from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import INFO, NOT_COLLECTED, Finding
from hpcprof.findings.registry import rule
from hpcprof.findings.thresholds import LINKS_WANTED_FRAC, TRANSFER_WARN_FRAC, transfer_level
from hpcprof.trace import columns as c
from hpcprof.units import counted, nbytes, percent


@rule
def node_link_slow(results: RunResults) -> Iterator[Finding]:
    """One node sends or receives at less than half of the speed of the other nodes.

    Fires: node2 sends at 12 MB/s, the others at 640 MB/s, and the transfer takes 41 % of the step.
    Stays quiet: all links equally slow; fewer than 3 messages of a node; with two nodes, when both
    directions are alike. Below 5 % of the step it is only told.
    """
    network = results.interconnect
    for slow in network.links.slow:
        saved = 1 - slow.rate_gb_s / slow.typical_gb_s
        share, (low, high) = network.transfer_frac, network.transfer_frac_ci
        known = share == share  # not nan
        yield Finding(
            rule="node-link-slow",
            level=transfer_level(share, network.steps),
            nodes=slow.nodes,
            phase=c.ALLREDUCE,
            cause="interconnect",
            impact_frac=share * saved if known else None,
            ci=(low * saved, high * saved) if known else None,
            message=f"{_what_is_slow(slow)}; {_transfer(network)}",
            evidence=tuple(_evidence(network, slow, saved)),
            advice=_advice(slow),
            next=(("recipe", "network"), ("nodes", list(slow.nodes))),
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
        advice="let the node agent measure them: profile: {agent: auto} in hpcprof.yaml",
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
    return (
        f"node {slow.nodes[0]} {slow.direction} at {speed}, the other nodes at {typical} (median)"
    )


def _transfer(network: Interconnect) -> str:
    if network.transfer_frac != network.transfer_frac:
        return "what the transfer takes of a step is not known"
    return f"the allreduce transfer takes {percent(network.transfer_frac)} of every step"


def _evidence(network: Interconnect, slow: SlowLink, saved: float) -> Iterator[str]:
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
    if links.transport == "mpi":
        yield "measured with MPI, on the fabric MPI chose"
    else:
        yield (
            f"measured with {transport(links)} on the nodes' network, which may not be the fabric "
            "that the training uses"
        )
    if network.transfer_frac >= TRANSFER_WARN_FRAC:
        yield (
            f"a healthy link could save at most {percent(network.transfer_frac * saved)} of the "
            "step, if the transfer is slow for this link alone"
        )
    if network.busbw_gb_s is not None:
        yield f"bus bandwidth of the allreduce at least {rate(network.busbw_gb_s)}"


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
