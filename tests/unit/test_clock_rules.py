"""What is said about the order of events between nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.align.node_clock import BOUNDED, TIGHT, UNCALIBRATED, UTC_ONLY, NodeClock
from hpcprof.findings import find
from hpcprof.findings.clock_rules import clocks_sentence
from tests.unit.results_builder import results

pytestmark = pytest.mark.unit

AGENT = NodeClock("node0", 0, 0, 500, 38_000, "agent ping-pong", TIGHT, 12)
ENDS = replace(AGENT, bound_ns=900_000, method="collective ends", status=BOUNDED)
WALL = replace(AGENT, bound_ns=20_000_000, method="wall clock", status=UTC_ONLY)
NOTHING = replace(AGENT, bound_ns=None, status=UNCALIBRATED)


def run(*clocks):
    named = {f"node{i}": replace(clock, node=f"node{i}") for i, clock in enumerate(clocks)}
    return replace(results(), clocks=named)


def said(*clocks):
    return [(f.rule, f.status, f.nodes) for f in find(run(*clocks)) if "clock" in f.message]


def test_clocks_compared_by_the_agent_are_a_sentence_and_no_finding():
    assert said(AGENT, replace(AGENT, bound_ns=41_000)) == []
    assert clocks_sentence(run(AGENT, replace(AGENT, bound_ns=41_000))) == (
        "clocks of 2 nodes each known to ±41 µs (agent ping-pong)"
    )


def test_a_bound_by_collectives_is_called_not_tight():
    assert clocks_sentence(run(ENDS, ENDS)) == (
        "clocks of 2 nodes each known to ±900 µs (collective ends, not tight)"
    )


@pytest.mark.parametrize(("loose", "limit"), [(WALL, "less than 40 ms apart"), (NOTHING, "at all")])
def test_a_node_tied_by_nothing_better_than_its_wall_clock_makes_order_unresolvable(loose, limit):
    (finding,) = [f for f in find(run(AGENT, loose)) if "order" in f.rule]
    assert (finding.rule, finding.status) == ("order-between-nodes-unknown", "not_resolvable")
    assert finding.nodes == ("node1",)
    assert limit in finding.message
    assert clocks_sentence(run(AGENT, loose)) == ""


def test_one_node_needs_no_order_between_nodes():
    assert said(NOTHING) == []
    assert clocks_sentence(run(AGENT)) == ""


def test_collectives_that_contradict_the_clocks_are_told_and_not_hidden():
    wrong = replace(AGENT, violations=3)
    (finding,) = [f for f in find(run(AGENT, wrong)) if "contradict" in f.rule]
    assert (finding.nodes, finding.status) == (("node1",), "not_resolvable")
    assert "3 times a collective ended on one node before it began on another" in finding.message
    assert clocks_sentence(run(AGENT, wrong)) == ""
