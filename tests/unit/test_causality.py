"""Contradictions between nodes, against a count that looks at every pair of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.align.causality import contradicted
from hpcprof.align.node_clock import BOUNDED, UNCALIBRATED, NodeClock

pytestmark = pytest.mark.unit


def clock(node: str, bound_ns: int | None, offset_ns: int = 0) -> NodeClock:
    status = UNCALIBRATED if bound_ns is None else BOUNDED
    return NodeClock(node, offset_ns, 0, 0, bound_ns, "made up", status)


def table(calls: dict[int, tuple[int, int]]) -> pd.DataFrame:
    """Collective -> (start, end), as ``per_node`` has them."""
    rows = np.array([[*calls[number]] for number in sorted(calls)], np.int64).reshape(-1, 2)
    index = pd.Index(sorted(calls), dtype=np.int64)
    return pd.DataFrame(rows, index=index, columns=["start_ns", "end_ns"])


def by_pairs(
    calls: dict[str, dict[int, tuple[int, int]]], clocks: dict[str, NodeClock]
) -> dict[str, int]:
    known = {node: at for node, at in clocks.items() if at.bound_ns is not None}
    broken: dict[str, set[int]] = {node: set() for node in known}
    for one, here in known.items():
        for other, there in known.items():
            for number in calls.get(one, {}).keys() & calls.get(other, {}).keys():
                start = calls[one][number][0] + here.offset_ns - here.bound_ns
                end = calls[other][number][1] + there.offset_ns + there.bound_ns
                if one != other and start > end:
                    broken[one].add(number)
                    broken[other].add(number)
    return {node: len(numbers) for node, numbers in broken.items()}


# few different times, so that nodes have the same ones
calls_of_a_node = st.dictionaries(
    st.integers(0, 4),
    st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda call: (call[0], sum(call))),
    max_size=5,
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(calls_of_a_node, min_size=1, max_size=5),
    st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(-4, 4)), min_size=5, max_size=5),
    st.booleans(),
)
def test_contradictions_are_those_that_a_look_at_every_pair_finds(nodes, made, has_unseen):
    calls = {f"node{i}": found for i, found in enumerate(nodes)}
    names = [*calls, "unseen"] if has_unseen else list(calls)
    clocks = {node: clock(node, *made[i % 5]) for i, node in enumerate(names)}
    tables = {node: table(found) for node, found in calls.items()}
    assert contradicted(tables, clocks) == by_pairs(calls, clocks)


def test_of_two_nodes_that_end_at_the_same_moment_each_is_the_others_witness():
    tables = {"a": table({0: (0, 5)}), "b": table({0: (0, 5)}), "c": table({0: (8, 9)})}
    clocks = {node: clock(node, 0) for node in tables}
    assert contradicted(tables, clocks) == {"a": 1, "b": 1, "c": 1}
    clocks["c"] = clock("c", 3)
    assert contradicted(tables, clocks) == {"a": 0, "b": 0, "c": 0}


def test_a_node_alone_contradicts_nobody():
    assert contradicted({"a": table({0: (0, 5), 3: (7, 8)})}, {"a": clock("a", 0)}) == {"a": 0}
    assert contradicted({}, {"a": clock("a", 0)}) == {"a": 0}
