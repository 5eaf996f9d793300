"""Transfer, bandwidth, link rates and their rules; truth computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.align.node_clock import TIGHT, UNCALIBRATED, UTC_ONLY, NodeClock
from hpcprof.analyses import arrivals
from hpcprof.analyses.collectives import MatchedCollectives, matched
from hpcprof.analyses.interconnect import IN_NETWORK, bus_factor, interconnect
from hpcprof.analyses.link_rates import MIN_MESSAGES, link_rates
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.stragglers import stragglers
from hpcprof.findings import find
from hpcprof.findings.healthy import healthy
from hpcprof.trace import columns as c
from hpcprof.trace.frame import spans_frame
from tests.unit.results_builder import all_pairs, link_table, links_of_agents, network, results

pytestmark = pytest.mark.unit

NODES = ["node0", "node1", "node2"]
NO_LINKS = link_table({})


def clocks(bound_ns, status=UTC_ONLY):
    return {n: NodeClock(n, 0, 0, 0, bound_ns, "wall clock", status) for n in NODES}


def profiled(calls):
    """Allreduces of one rank: (step, bytes, start, end) in ns."""
    return spans_frame(
        {
            c.START_NS: [start for *_, start, _ in calls],
            c.END_NS: [end for *_, end in calls],
            c.KIND: c.COLLECTIVE,
            c.NAME: "HorovodAllreduce",
            c.OP: "allreduce",
            c.STEP: [step for step, *_ in calls],
            c.BYTES: [size for _, size, *_ in calls],
            c.SOURCE: "nsys",
        }
    )


def of_calls(calls, step_ns=1000.0, node_clocks=None, links=NO_LINKS):
    """``calls``: rank → allreduces; rank r is on node r."""
    spans = {rank: profiled(rows) for rank, rows in calls.items()}
    node_of = {rank: f"node{rank}" for rank in calls}
    return interconnect(
        matched(spans, arrivals.PROFILER), step_ns, links, node_of, node_clocks or {}
    )


# 6 steps of 1000 ns; rank 1 arrives 300 ns after rank 0, then 100 ns of transfer
TWO_RANKS = {
    0: [(k, 4000, 1000 * k + 500, 1000 * k + 900) for k in range(6)],
    1: [(k, 4000, 1000 * k + 800, 1000 * k + 900) for k in range(6)],
}


def test_transfer_wait_and_bandwidth_of_a_late_rank():
    found = of_calls(TWO_RANKS, node_clocks=clocks(140))
    assert (found.collectives, found.steps, found.dropped) == (6, 6, 0)
    assert (found.transfer_ns, found.transfer_frac) == (100.0, 0.1)
    assert (found.transfer_frac_ci, found.collective_ns_ci) == ((0.1, 0.1), (100.0, 100.0))
    assert (found.collective_ns, found.bytes_per_step) == (100.0, 4000)
    assert found.wait_ns == {0: 300.0, 1: 0.0}
    assert (found.clock_status, found.clock_wait_ns) == ("ok", {0: 300.0, 1: 0.0})
    # 4000 bytes in 100 ns; two ranks: 2 (n-1)/n = 1
    assert (found.algbw_gb_s, found.busbw_gb_s) == (40.0, 40.0)


def test_a_wait_smaller_than_the_error_of_the_clocks_is_not_resolvable():
    # the clocks of both nodes are off by their bounds, in opposite directions
    assert of_calls(TWO_RANKS, node_clocks=clocks(150)).clock_status == "not_resolvable"
    assert of_calls(TWO_RANKS, node_clocks=clocks(150)).clock_wait_ns == {}
    assert of_calls(TWO_RANKS, node_clocks=clocks(149)).clock_status == "ok"
    # the clock-free wait needs no clock
    assert of_calls(TWO_RANKS, node_clocks=clocks(150)).wait_ns == {0: 300.0, 1: 0.0}
    reference = {**clocks(299), "node0": NodeClock("node0", 0, 0, 0, 0, "agent", TIGHT)}
    assert of_calls(TWO_RANKS, node_clocks=reference).clock_status == "ok"


@pytest.mark.parametrize("node_clocks", [{}, clocks(None), clocks(5, UNCALIBRATED)])
def test_without_a_clock_between_the_nodes_their_order_is_not_collected(node_clocks):
    found = of_calls(TWO_RANKS, node_clocks=node_clocks)
    assert (found.clock_status, found.clock_wait_ns) == ("not_collected", {})


def test_ranks_of_one_node_need_no_bound():
    spans = {rank: profiled(rows) for rank, rows in TWO_RANKS.items()}
    found = interconnect(
        matched(spans, arrivals.PROFILER),
        1000.0,
        NO_LINKS,
        {0: "node0", 1: "node0"},
        clocks(10**9, TIGHT),
    )
    assert found.clock_wait_ns == {0: 300.0, 1: 0.0}


def test_what_is_hidden_behind_the_backward_pass_is_no_cost():
    # the first of two runs from 100 to 600 while the ranks still compute; the second is handed
    # over at 700 and both are done at 900: 200 ns of 1000 are not hidden, 700 ns were busy
    calls = [(0, 5000, 100, 600), (0, 2000, 700, 900)]
    found = of_calls({0: calls, 1: calls, 2: calls, 3: calls})
    assert (found.transfer_ns, found.transfer_frac) == (200.0, 0.2)
    assert found.collective_ns == 350.0  # of 500 and 200
    assert found.algbw_gb_s == 10.0
    assert found.busbw_gb_s == 15.0  # 2 * 3/4


def test_collectives_at_the_same_time_do_not_count_twice():
    calls = [(0, 3000, 100, 400), (0, 3000, 200, 500)]
    found = of_calls({0: calls, 1: calls})
    assert found.algbw_gb_s == 15.0  # 6000 bytes from 100 to 500
    nested = [(0, 3000, 100, 500), (0, 2000, 200, 300), (0, 1000, 400, 600), (0, 0, 700, 800)]
    assert of_calls({0: nested, 1: nested}).algbw_gb_s == 10.0  # from 100 to 600 and 700 to 800


def test_unknown_bytes_give_no_rate():
    calls = [(0, None, 0, 10)]
    found = of_calls({0: calls, 1: calls})
    assert (found.bytes_per_step, found.algbw_gb_s, found.busbw_gb_s) == (None, None, None)
    assert found.transfer_ns == 10.0


def test_nothing_to_match_leaves_everything_unknown_but_the_links():
    found = of_calls({0: [(0, 8, 0, 10)], 1: []}, links=link_table(all_pairs(2)))
    assert (found.collectives, found.dropped, found.bytes_per_step) == (0, 1, None)
    assert np.isnan(found.transfer_frac)
    assert found.links.sends_gb_s == {"node0": pytest.approx(0.64), "node1": pytest.approx(0.64)}


def test_the_interval_covers_the_spread_of_the_steps():
    lengths = np.random.default_rng(5).integers(80, 121, 40).tolist()
    calls = [(k, 8, 1000 * k, 1000 * k + length) for k, length in enumerate(lengths)]
    found = of_calls({0: calls, 1: calls})
    low, high = found.transfer_frac_ci
    assert found.transfer_frac == np.median(lengths) / 1000
    assert 0.085 < low < found.transfer_frac < high < 0.115


# nccl-tests src/*.cu, factors for 2, 4, 8 and 16 ranks
NCCL_TESTS = {
    "allreduce": (1.0, 1.5, 1.75, 1.875),
    "reducescatter": (0.5, 0.75, 0.875, 0.9375),
    "allgather": (0.5, 0.75, 0.875, 0.9375),
    "alltoall": (0.5, 0.75, 0.875, 0.9375),
    "broadcast": (1.0, 1.0, 1.0, 1.0),
    "reduce": (1.0, 1.0, 1.0, 1.0),
    "sendrecv": (1.0, 1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("op", sorted(NCCL_TESTS))
def test_bus_factors_are_those_of_nccl_tests(op):
    assert tuple(bus_factor(op, n) for n in (2, 4, 8, 16)) == NCCL_TESTS[op]


def test_in_network_reduction_has_a_factor_of_its_own():
    assert bus_factor("allreduce", 8, IN_NETWORK) == pytest.approx(7 / 9)
    with pytest.raises(KeyError):
        bus_factor("barrier", 8)


def slow_sender(rate=0.012):
    """Three nodes at 0.64 GB/s of which node2 sends slowly."""
    return {pair: rate if pair[0] == "node2" else gb_s for pair, gb_s in all_pairs(3).items()}


def test_a_slow_sender_does_not_stain_its_partners():
    rates = link_rates(link_table(slow_sender()), NODES)
    (slow,) = rates.slow
    assert (slow.nodes, slow.direction, slow.messages) == (("node2",), "sends", 6)
    assert slow.rate_gb_s == pytest.approx(0.012, rel=1e-3)
    assert slow.typical_gb_s == pytest.approx(0.64, rel=1e-3)
    assert rates.receives_gb_s == {n: pytest.approx(0.64, rel=1e-3) for n in NODES}
    assert (rates.transport, rates.messages, rates.unmeasured) == ("tcp", 18, ())


def test_names_may_be_categories_as_the_reader_gives_them():
    table = link_table({**slow_sender(), ("node0", "stranger"): 9.0})
    named = table.astype({"node": "category", "peer": "category", "transport": "category"})
    assert link_rates(named, NODES) == link_rates(table, NODES)
    assert [slow.nodes for slow in link_rates(named, NODES).slow] == [("node2",)]
    assert link_rates(pd.DataFrame(), NODES).unmeasured == tuple(NODES)


def test_a_node_that_is_slow_both_ways_is_given_once_with_the_worse_way():
    pairs = {}
    for (sender, receiver), gb_s in all_pairs(4).items():
        pairs[sender, receiver] = {("node1", 0): 0.1, ("node1", 1): 0.05}.get(
            (sender, 0), 0.05 if receiver == "node1" else gb_s
        )
    (slow,) = link_rates(link_table(pairs), [*NODES, "node3"]).slow
    assert (slow.nodes, slow.direction) == (("node1",), "receives")


def test_half_of_the_others_is_not_yet_slow():
    assert link_rates(link_table(slow_sender(0.321)), NODES).slow == ()
    # half of the best, but not of an ordinary message: those of link_table are 0.32 GB/s and more
    assert link_rates(link_table(slow_sender(0.319)), NODES).slow == ()
    assert len(link_rates(link_table(slow_sender(0.159)), NODES).slow) == 1


def test_two_lucky_measurements_do_not_make_an_ordinary_node_slow():
    # seen on busy nodes: the best of a few messages were 1.7 and 2.0 GB/s, others 0.8 to 1.2
    def rate(sender, receiver, burst):
        return {0: 1.7, 1: 2.0}.get(receiver, 0.8) if burst == 1 else 0.7

    rates = link_rates(links_of_agents(4, 3, rate), [f"node{i}" for i in range(4)])
    assert max(rates.receives_gb_s.values()) == pytest.approx(2.0, rel=0.01)
    assert rates.slow == ()
    # neither is it called fast: it counts as not measured
    assert {"node2", "node3"} <= set(rates.unmeasured)
    assert rates.uneven == ("receives",)


def test_one_lucky_way_back_does_not_make_the_way_there_slow():
    def rate(sender, receiver, burst):
        return 0.8 if sender == 0 else (2.0 if burst == 2 else 0.9)

    assert link_rates(links_of_agents(2, 4, rate), ["node0", "node1"]).slow == ()
    (slow,) = link_rates(
        links_of_agents(2, 6, lambda sender, *_: 0.1 if sender == 0 else 0.9), ["node0", "node1"]
    ).slow
    assert (slow.nodes, slow.direction) == (("node0", "node1"), "pair")


def test_the_best_of_many_measurements_counts():
    # of four messages only one did not meet the training's traffic
    busy = {pair: gb_s / 100 for pair, gb_s in all_pairs(3).items()}
    one = link_table(all_pairs(3), repeats=1)
    table = link_table(busy)
    joined = pd.concat([table, one], ignore_index=True)
    rates = link_rates(joined, NODES)
    assert rates.sends_gb_s == {n: pytest.approx(0.64, rel=1e-3) for n in NODES}
    assert rates.slow == ()


def test_messages_made_of_latency_are_not_believed():
    # an empty message once took longer than 8 MB: the rate would be 8 MB per ns
    table = link_table(slow_sender())
    odd = table.index[(table["node"] == "node0") & (table["start_ns"] == 0)]
    table.loc[odd, "round_trip_ns"] = table.loc[odd, "duration_ns"] + 5
    rates = link_rates(table, NODES)
    assert rates.sends_gb_s["node0"] == pytest.approx(0.32, rel=1e-3)  # the second best
    assert [slow.nodes for slow in rates.slow] == [("node2",)]


def test_small_messages_of_a_pair_do_not_count_beside_large_ones():
    table = link_table(all_pairs(3))
    small = table.assign(bytes=1000, duration_ns=100_100)  # 1000 bytes in 50.1 µs
    joined = pd.concat([table, small], ignore_index=True)
    assert link_rates(joined, NODES).messages == len(table)


def test_too_few_messages_are_no_measurement():
    rates = link_rates(link_table(slow_sender(), repeats=1), NODES)
    assert MIN_MESSAGES > 2  # each node sent to two peers once
    assert (rates.slow, rates.sends_gb_s, rates.unmeasured) == ((), {}, tuple(NODES))


def test_strangers_and_a_node_itself_are_no_links():
    pairs = {("node0", "node0"): 50.0, ("login", "node1"): 0.001, **all_pairs(3)}
    rates = link_rates(link_table(pairs), NODES)
    assert (rates.messages, rates.slow) == (18, ())
    assert rates.sends_gb_s["node0"] == pytest.approx(0.64, rel=1e-3)


def test_with_two_nodes_only_the_direction_can_be_named():
    pairs = {("node0", "node1"): 0.1, ("node1", "node0"): 0.6}
    there = links_of_agents(2, 6, lambda sender, *_: 0.1 if sender == 0 else 0.6)
    (slow,) = link_rates(there, NODES[:2]).slow
    # five may all be slow by chance
    few = links_of_agents(2, 5, lambda sender, *_: 0.1 if sender == 0 else 0.6)
    assert link_rates(few, NODES[:2]).slow == ()
    assert (slow.nodes, slow.direction) == (("node0", "node1"), "pair")
    assert (slow.rate_gb_s, slow.typical_gb_s) == (
        pytest.approx(0.1, rel=1e-3),
        pytest.approx(0.6, rel=1e-3),
    )
    both = dict.fromkeys(pairs, 0.1)
    assert link_rates(link_table(both), NODES[:2]).slow == ()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.5, 0.99), min_size=6, max_size=6))
def test_links_within_a_factor_of_two_accuse_nobody(factors):
    pairs = dict(zip(all_pairs(3), factors, strict=True))
    assert link_rates(link_table(pairs), NODES).slow == ()


def names(nodes):
    return [f"node{i}" for i in range(nodes)]


def slow_at(nodes, slow_gb_s=0.5, gb_s=5.0):
    """Rate of links_of_agents when some nodes send and receive slowly."""
    return lambda sender, receiver, burst: slow_gb_s if {sender, receiver} & set(nodes) else gb_s


def accused(rates):
    return sorted(slow.nodes[0] for slow in rates.slow)


def test_two_slow_neighbours_in_a_ring_do_not_stain_those_beside_them():
    # node 3 sends only to 4 and 5, node 6 receives only from them; so do half of their own links
    table = links_of_agents(8, 30, slow_at({4, 5}), rotate=False)
    rates = link_rates(table, names(8))
    assert accused(rates) == ["node4", "node5"]
    assert {slow.nodes[0]: slow.direction for slow in rates.slow} == {
        "node4": "receives",
        "node5": "sends",
    }
    assert rates.unmeasured == ("node3", "node4", "node5", "node6")
    assert (set(names(8)) - set(rates.sends_gb_s)) == {"node3", "node4"}
    assert (set(names(8)) - set(rates.receives_gb_s)) == {"node5", "node6"}


@pytest.mark.parametrize(
    ("nodes", "slow"), [(3, {1}), (4, {0, 3}), (4, {1, 2}), (6, {1, 2, 3}), (8, {4, 5}), (9, {0})]
)
def test_agents_that_change_their_neighbours_find_up_to_half_of_the_nodes(nodes, slow):
    rates = link_rates(links_of_agents(nodes, 12, slow_at(slow)), names(nodes))
    assert accused(rates) == [f"node{i}" for i in sorted(slow)]
    assert rates.unmeasured == ()


def test_a_node_that_met_able_peers_only_beside_the_training_is_held_to_what_others_reach_then():
    def rate(sender, receiver, burst):
        return slow_at({4, 5}, gb_s=2.0 if burst else 5.0)(sender, receiver, burst)

    # in the first burst, on a quiet network, node 3 sends to 4 and 5 only
    rates = link_rates(links_of_agents(8, 12, rate), names(8))
    assert accused(rates) == ["node4", "node5"]
    assert (rates.sends_gb_s["node2"], "node3" in rates.sends_gb_s) == (pytest.approx(5.0), False)


def test_a_node_measured_too_seldom_with_peers_that_can_do_better_is_not_accused():
    # twice with node2, at a moment of much traffic; else with the slow node1
    pairs = {pair: 0.05 if "node1" in pair else gb_s for pair, gb_s in all_pairs(5).items()}
    mine = {pair: 0.1 for pair in pairs if pair[0] == "node0"}
    rest = {pair: gb_s for pair, gb_s in pairs.items() if pair[0] != "node0"}
    table = pd.concat(
        [
            link_table(rest),
            link_table({("node0", "node1"): 0.05}, repeats=9),
            link_table({("node0", "node2"): mine["node0", "node2"]}, repeats=2),
        ]
    )
    rates = link_rates(table, names(5))
    assert accused(rates) == ["node1"]
    assert "node0" not in rates.sends_gb_s


def test_one_freak_measurement_accuses_nobody_and_is_not_healthy():
    table = links_of_agents(4, 9, slow_at(()))
    table.loc[table.index[-1], "duration_ns"] = 100_000  # 1 MiB at 20 GB/s
    rates = link_rates(table, names(4))
    assert (rates.slow, rates.uneven) == ((), ("sends", "receives"))


def with_network(transfer_frac, rates, nodes=3, steps=60, transport="mpi"):
    run = results(ranks=2 * nodes)
    return replace(run, interconnect=network(transfer_frac, rates, nodes, steps, transport))


def only(run, rule):
    return [finding for finding in find(run) if finding.rule == rule]


def test_a_slow_link_is_one_critical_finding_that_names_the_node_and_no_rank():
    run = with_network(0.41, slow_sender())
    (finding,) = only(run, "node-link-slow")
    assert (finding.level, finding.status, finding.cause) == ("critical", "ok", "interconnect")
    assert (finding.nodes, finding.ranks, finding.phase) == (("node2",), (), "allreduce")
    assert finding.message == (
        "node node2 sends at 12 MB/s, where other nodes reach 640 MB/s; "
        "the allreduce transfer takes 41 % of every step"
    )
    saved = 1 - 0.012 / 0.64
    assert finding.impact_frac == pytest.approx(0.41 * saved, rel=1e-3)
    # nobody measured the step without that link: a limit has no interval
    assert (finding.impact_is_limit, finding.ci) == (True, None)
    assert "--exclude=node2" in finding.advice
    assert finding.evidence == (
        "best of 6 messages between the node agents",
        "node2 sends at 12 MB/s and receives at 640 MB/s",
        "measured with MPI, on the fabric MPI chose",
        "the cost is what a healthy link could save, if the transfer is slow for it alone",
    )
    assert not [f for f in find(run) if f.rule == "rank-arrives-late"]
    assert not [s for s in healthy(run, find(run)) if s.startswith("interconnect")]


@pytest.mark.parametrize(
    ("share", "steps", "level"),
    [(0.04, 60, "info"), (0.05, 60, "warn"), (0.2, 60, "critical"), (0.2, 14, "warn")],
)
def test_the_level_follows_what_the_transfer_costs(share, steps, level):
    (finding,) = only(with_network(share, slow_sender(), steps=steps), "node-link-slow")
    assert finding.level == level


def test_a_slow_link_of_unknown_cost_is_told_without_a_number():
    (finding,) = only(with_network(float("nan"), slow_sender()), "node-link-slow")
    assert (finding.level, finding.impact_frac, finding.impact_is_limit) == ("info", None, False)
    assert finding.message.endswith("; what the transfer takes of a step is not known")


def test_two_nodes_are_named_together():
    there = links_of_agents(2, 6, lambda sender, *_: 0.1 if sender == 0 else 0.6)
    (finding,) = only(with_network(0.3, there, nodes=2), "node-link-slow")
    assert finding.nodes == ("node0", "node1")
    assert finding.message.startswith(
        "between node0 and node1: from node0 to node1 100 MB/s, back 600 MB/s; with two nodes "
        "nobody can tell which end it is; "
    )


def test_links_alike_are_said_to_be_in_order_with_their_rates():
    pairs = {pair: 0.61 if pair[0] == "node1" else gb_s for pair, gb_s in all_pairs(3).items()}
    run = with_network(0.3, pairs)
    assert [f.rule for f in find(run)] == ["order-between-nodes-unknown"]
    assert [s for s in healthy(run, []) if s.startswith("interconnect")] == [
        "interconnect: at their best moment all 3 nodes send at 610 MB/s to 640 MB/s and receive "
        "at 640 MB/s to 640 MB/s, none at less than half of another (measured by the agent, MPI; "
        "a link that is slow at times is not seen)"
    ]


@pytest.mark.parametrize(("transport", "level"), [("mpi", "critical"), ("tcp", "warn")])
def test_what_was_measured_over_tcp_warns_at_most_and_says_so(transport, level):
    (finding,) = only(with_network(0.41, slow_sender(), transport=transport), "node-link-slow")
    assert finding.level == level
    doubt = "640 MB/s (over TCP, which may not be the fabric that the training uses); "
    assert (doubt in finding.message) == (transport == "tcp")


def test_several_slow_nodes_claim_the_transfer_once():
    pairs = {
        pair: {"node1": 0.1, "node2": 0.05}.get(pair[0], gb_s)
        for pair, gb_s in all_pairs(4).items()
    }
    first, second = only(with_network(0.4, pairs, nodes=4), "node-link-slow")
    assert (first.nodes, first.impact_is_limit) == (("node2",), True)
    assert first.impact_frac == pytest.approx(0.4 * (1 - 0.05 / 0.64), rel=1e-3)
    assert first.evidence[-1] == (
        "the cost is what healthy links could save, counted here for node1 as well"
    )
    assert (second.nodes, second.impact_frac, second.level) == (("node1",), None, "critical")
    assert second.evidence[-1] == "its cost is counted with that of node2, the slowest"


def test_more_slow_nodes_than_can_be_told_apart_are_not_called_healthy():
    # two of three send slowly, so that the third cannot receive fast
    senders = {pair: 12.5 if pair[0] == "node0" else 1.0 for pair in all_pairs(3)}
    run = with_network(0.3, senders)
    (finding,) = only(run, "slow-links-not-assessed")
    assert (finding.level, finding.status, finding.nodes) == ("info", "insufficient", ())
    assert finding.message.startswith(
        "whether a node's link is slow: at their best moment the nodes send at 1 GB/s to "
        "12.5 GB/s and receive at 1 GB/s to 12.5 GB/s (measured by the agent, MPI); "
    )
    assert only(run, "node-link-slow") == []
    assert not [s for s in healthy(run, find(run)) if s.startswith("interconnect")]


def test_half_slow_nodes_in_a_ring_are_neither_named_nor_called_healthy():
    # with 2 and 3 slow, 0 → 1 is the only pair of the ring that is fast
    table = links_of_agents(4, 10, slow_at({2, 3}, 1.0, 12.5), rotate=False)
    run = with_network(0.3, table, nodes=4)
    assert [f.status for f in only(run, "slow-links-not-assessed")] == ["insufficient"]
    assert only(run, "node-link-slow") == []
    assert not [s for s in healthy(run, find(run)) if s.startswith("interconnect")]


def test_where_a_slow_node_is_named_the_spread_is_no_finding_of_its_own():
    run = with_network(0.3, links_of_agents(4, 9, slow_at({1}), rotate=False), nodes=4)
    assert [f.nodes for f in only(run, "node-link-slow")] == [("node1",)]
    assert only(run, "slow-links-not-assessed") == []


def test_a_link_that_was_slow_in_most_of_the_run_is_told():
    def rate(sender, receiver, burst):
        return 0.01 if sender == 2 and burst != 7 else 0.64

    table = links_of_agents(4, 15, rate)
    run = with_network(0.3, table, nodes=4)
    (finding,) = only(run, "node-link-often-slow")
    assert (finding.level, finding.status, finding.nodes) == ("info", "ok", ("node2",))
    assert finding.message == (
        "node node2 sends at less than half of 640 MB/s, which other nodes reach in most "
        "measurements, in 28 of 30 measurements; at its best moment its link is not slow"
    )
    assert only(run, "node-link-slow") == []
    assert not [s for s in healthy(run, find(run)) if s.startswith("interconnect")]


@pytest.mark.parametrize(
    ("nodes", "rates"),
    [(3, {}), (2, all_pairs(2)), (4, all_pairs(3))],
    ids=["not-measured", "two-nodes", "one-node-not-measured"],
)
def test_what_was_not_measured_is_not_called_healthy(nodes, rates):
    run = with_network(0.3, rates, nodes=nodes)
    assert not [s for s in healthy(run, []) if s.startswith("interconnect")]


def test_a_long_transfer_without_measured_links_asks_for_the_agent():
    (finding,) = only(with_network(0.3, {}), "links-not-measured")
    assert (finding.level, finding.status, finding.ranks) == ("info", "not_collected", ())
    assert finding.nodes == tuple(NODES)
    assert finding.message == (
        "whether a slow link is the reason: the allreduce transfer takes 30 % of every step, and "
        "the links between the nodes were not measured"
    )
    assert "agent: auto" in finding.advice
    (partly,) = only(with_network(0.3, all_pairs(3), nodes=4), "links-not-measured")
    assert partly.message.endswith("and the links of node3 were not measured")


@pytest.mark.parametrize(
    ("share", "nodes", "rates"),
    [(0.19, 3, {}), (0.3, 1, {}), (0.3, 3, all_pairs(3)), (float("nan"), 3, {})],
)
def test_links_are_not_asked_for_without_need(share, nodes, rates):
    assert only(with_network(share, rates, nodes=nodes), "links-not-measured") == []


def ring_spans(ranks, late_ms=0.0, steps=40, transfer_ms=120.0, seed=3):
    """Steps of 80 ms of work, then a long transfer that ends some ms apart, as in a ring.

    Rank 1 works ``late_ms`` longer. Every rank starts its next step when its own transfer ends;
    the ring's last rank is always the last to leave.
    """
    ms = 1e6
    generator = np.random.default_rng(seed)
    free = np.zeros(ranks)
    work = 80 * ms + (np.arange(ranks) == 1) * late_ms * ms
    rows = {rank: [] for rank in range(ranks)}
    for step in range(steps):
        ready = free + work * (1 + 0.01 * generator.standard_normal(ranks))
        ends = ready.max() + transfer_ms * ms + np.arange(ranks) * 3 * ms
        for rank in range(ranks):
            rows[rank].append((step, 1000, int(ready[rank]), int(ends[rank])))
        free = ends
    return {rank: profiled(calls) for rank, calls in rows.items()}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_slow_link_makes_no_rank_a_straggler(ranks):
    spans = ring_spans(ranks)
    frames = {r: arrivals.per_rank(table, arrivals.PROFILER) for r, table in spans.items()}
    node_of = {rank: f"node{rank}" for rank in range(ranks)}
    matrix = across_ranks(frames, ranks)
    verdict = stragglers(matrix, node_of)
    assert (verdict.status, verdict.found) == ("ok", ())
    found = interconnect(
        matched(spans, arrivals.PROFILER), matrix.median_step_ns, NO_LINKS, node_of, {}
    )
    assert 0.55 < found.transfer_frac < 0.65  # 120 ms and more of about 200


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_late_rank_is_still_found_behind_a_slow_link(ranks):
    spans = ring_spans(ranks, late_ms=30.0)
    frames = {r: arrivals.per_rank(table, arrivals.PROFILER) for r, table in spans.items()}
    verdict = stragglers(across_ranks(frames, ranks), {r: f"node{r}" for r in range(ranks)})
    assert [straggler.ranks for straggler in verdict.found] == [(1,)]


def test_one_rank_alone_has_no_transfer():
    rows = profiled([(0, 8, 0, 10)])
    alone = matched({0: rows}, arrivals.PROFILER)
    assert isinstance(alone, MatchedCollectives)
    found = interconnect(alone, 100.0, NO_LINKS, {0: "node0"}, {})
    assert (found.collectives, found.wait_ns) == (0, {})
