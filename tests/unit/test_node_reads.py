"""Test reads of the nodes: how long they take, which node is slow, and when nothing is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analyses import node_reads as analysis
from hpcprof.analyses.node_reads import NodeReads, ReadTimes, are_alike, node_reads
from hpcprof.artifacts import node_records
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.readers.agent_files import read_samples
from tests.unit.sample_writer import MS, Counters, failed, pending, read, write_samples

pytestmark = pytest.mark.unit


@pytest.fixture
def measured(tmp_path: Path):
    """Samples by node, through the agent's file and its reader."""

    def write_and_read(looks: dict[str, Sequence[Counters]]) -> NodeReads:
        paths = ArtifactPaths(tmp_path)
        for node, counters in looks.items():
            write_samples(paths, node, counters)
        return node_reads({node: read_samples(paths, node) for node in looks})

    return write_and_read


def reads(*ms: float) -> list[Counters]:
    return [read(value) for value in ms]


def test_the_names_are_those_of_the_agent():
    assert set(analysis.COUNTERS) <= set(node_records.COUNTERS)


def test_a_node_that_reads_slowly_is_named(measured):
    found = measured(
        {
            "node0": reads(0.2, 0.3, 0.4),
            "node1": reads(40, 48, 60, 44),
            "node2": reads(0.3, 0.3, 90),  # one slow read is nothing
        }
    )
    assert found.slow == ("node1",)
    assert {name: times.count for name, times in found.nodes.items()} == {
        **{"node0": 3, "node1": 4, "node2": 3}
    }
    assert found.nodes["node1"].median_ns == 46 * MS
    assert found.on(["node1"]) == found.nodes["node1"]
    others = found.beside(["node1"])
    assert (others.count, others.median_ns) == (6, 0.3 * MS)
    assert others.high_ns == found.nodes["node2"].high_ns > 50 * MS


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "is_slow"),
    [
        (10.0, 2.0, True),  # 5 times
        (9.9, 2.0, False),
        (2.4, 0.4, True),  # 2 ms more
        (2.3, 0.4, False),
        (0.4, 0.02, False),  # a page-cache hit on the others: 20 times as long means nothing
        (2.0, 2.0, False),
    ],
)
def test_slow_is_five_times_and_two_milliseconds_more(measured, own_ms, others_ms, is_slow):
    found = measured({"node0": reads(*[others_ms] * 3), "node1": reads(*[own_ms] * 3)})
    assert found.slow == (("node1",) if is_slow else ())


def test_fewer_than_three_reads_neither_accuse_nor_compare(measured):
    few = reads(48, 48)
    found = measured({"node0": reads(*[0.3] * 9), "node1": few})
    assert (found.slow, found.nodes["node1"].count) == ((), 2)
    assert found.on(["node1"]).count == 0
    assert measured({"node0": reads(0.3, 0.3), "node1": reads(*[48] * 9)}).slow == ()


def test_the_slow_ones_are_compared_with_the_median_of_the_others(measured):
    fast, slow = reads(*[1.0] * 3), reads(*[50.0] * 3)
    nodes = {"node0": fast, "node1": slow, "node2": fast, "node3": fast}
    assert measured(nodes).slow == ("node1",)
    assert measured({**nodes, "node3": slow}).slow == ("node1", "node3")
    # beside one slow and one fast node nobody knows what is usual
    assert measured({"node1": slow, "node2": slow, "node3": fast}).slow == ()


def test_a_read_that_has_not_come_back_counts_once_with_its_age(measured):
    found = measured(
        {
            "node0": [*reads(1, 1), pending(1000), pending(2000), pending(7000)],
            "node1": reads(1, 1, 1),
        }
    )
    assert found.nodes["node0"].count == 3
    assert found.nodes["node0"].high_ns == pytest.approx((1 + 0.8 * 6999) * MS)


def test_the_times_of_a_read_that_came_back_replace_its_age(measured):
    found = measured({"node0": [pending(1000), pending(2000), read(2500)], "node1": reads(1)})
    assert found.nodes["node0"] == ReadTimes(1, 2500 * MS, 2500 * MS)


def test_reads_that_hang_one_after_the_other_are_several_and_slow(measured):
    hanging = [pending(5000), pending(9000), pending(1000), pending(8000), pending(3000)]
    found = measured({"node0": reads(1, 1, 1), "node1": hanging})
    assert found.slow == ("node1",)
    assert (found.nodes["node1"].count, found.nodes["node1"].median_ns) == (3, 8000 * MS)


def test_failed_reads_are_counted_apart(measured):
    # the count stays in every sample with a read that follows
    looks = [read(1), failed(1), {**read(1), **failed(1)}, failed(2), {**read(1), **failed(2)}]
    found = measured({"node0": looks, "node1": reads(1, 1, 1)})
    assert found.nodes["node0"] == ReadTimes(3, MS, MS, errors=2)


def test_a_read_that_hung_and_failed_took_at_least_that_long(measured):
    found = measured({"node0": [pending(5000), failed(1), read(1)], "node1": reads(1)})
    assert found.nodes["node0"].count == 2
    assert found.nodes["node0"].median_ns == pytest.approx(2500.5 * MS)
    assert found.nodes["node0"].errors == 1


def test_where_every_read_failed_there_is_no_time(measured):
    found = measured({"node0": [failed(1), failed(2)], "node1": reads(1, 1, 1)})
    times = found.nodes["node0"]
    assert (times.count, times.errors, found.slow) == (0, 2, ())
    assert math.isnan(times.median_ns)
    assert not are_alike(found.on(["node0"]), found.on(["node1"]))


def test_an_empty_file_is_no_read(measured):
    opened = {"canary_stat_ns": 900, "canary_open_ns": 10 * MS}
    assert "node0" not in measured({"node0": [opened] * 5, "node1": reads(1)}).nodes


@pytest.mark.parametrize(
    "looks",
    [{}, {"node0": reads(*[48] * 9)}, {"node0": [{}] * 9, "node1": [{}] * 9}, {"a": [], "b": []}],
    ids=["no samples", "one node", "no data_dir", "empty files"],
)
def test_where_nothing_can_be_compared_nothing_was_measured(measured, looks):
    found = measured(looks)
    assert (dict(found.nodes), found.slow) == ({}, ())
    assert found.on(["node0"]).count == 0
    assert not are_alike(found.on(["node0"]), found.beside(["node0"]))


@pytest.mark.parametrize(
    ("own", "alike"),
    [
        ((1.0, 1.0, 1.0, 1.0), True),
        ((2.0, 2.0, 2.0, 2.0), True),
        ((2.1, 2.1, 2.1, 2.1), False),  # not slow either: nothing is concluded
        ((1.0, 1.0, 40.0, 40.0), False),  # now and then it is slow
    ],
)
def test_alike_means_as_fast_nearly_every_time(measured, own, alike):
    found = measured({"node0": reads(*own), "node1": reads(1, 1, 1)})
    assert are_alike(found.on(["node0"]), found.beside(["node0"])) is alike
    with_error = measured({"node0": [*reads(*own), failed(1)], "node1": reads(1, 1, 1)})
    assert not are_alike(with_error.on(["node0"]), with_error.beside(["node0"]))


def _frame(time_ns: int) -> pd.DataFrame:
    """Samples of a node all of whose three test reads take so long."""
    values = {analysis.OPEN_NS: 0, analysis.READ_NS: time_ns}
    rows = [(at, None, name, value) for at in range(3) for name, value in values.items()]
    return pd.DataFrame(rows, columns=["time_ns", "rank", "name", "value"])


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**10), min_size=2, max_size=6))
def test_most_nodes_are_never_slow_and_the_fastest_is_not(times):
    samples = {f"node{i}": _frame(time_ns) for i, time_ns in enumerate(times)}
    slow = node_reads(samples).slow
    assert 2 * len(slow) <= len(times)
    assert f"node{times.index(min(times))}" not in slow
    assert f"node{times.index(max(times))}" in slow or not slow
