"""Skewed node clocks: what they show, and that the truth about them is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.artifacts.node_time import TEST_CLOCK, skewed_clocks
from tests.cluster.clocks import ClockSkew, NodeClock, SkewedClocks, namespace_offset_ns

pytestmark = pytest.mark.unit

BILLION = 10**9
# at any rate worth a test, so long ago that the gain is far more than a reading takes
LONG_AGO_NS = 10**15

SHOW_FUNCTIONS = (
    "import time; from hpcprof.artifacts import node_time as n;"
    "print(n.monotonic_ns is time.monotonic_ns, n.realtime_ns is time.time_ns)"
)

readings = st.integers(0, 10**18)
rates = st.integers(-BILLION + 1, 2 * BILLION)


@st.composite
def clocks(draw):
    ahead, begin = draw(st.integers(-(10**15), 10**15)), draw(readings)
    return NodeClock(
        ahead, begin + ahead, ClockSkew(draw(rates), draw(st.integers(-(10**12), 10**12)))
    )


@pytest.mark.parametrize("ppb", [30_000, -30_000, 500_000_000])
def test_monotonic_clock_is_off_by_rate_times_elapsed_time(ppb):
    origin = time.monotonic_ns() - LONG_AGO_NS
    monotonic, _ = skewed_clocks(origin, ppb, realtime_offset_ns=7)
    before = time.monotonic_ns()
    shown = monotonic()
    after = time.monotonic_ns()
    low, high = (now + (now - origin) * ppb // BILLION for now in (before, after))
    assert low <= shown <= high
    # and not the true clock: 30 ppm of eleven days are 30 seconds
    assert not before <= shown <= after


@pytest.mark.parametrize(("ppb", "offset"), [(0, 40_000_000), (30_000, -(10**12)), (-30_000, 0)])
def test_wall_clock_is_off_by_its_offset_and_by_rate(ppb, offset):
    origin = time.monotonic_ns() - LONG_AGO_NS
    _, realtime = skewed_clocks(origin, ppb, offset)
    before, real_before = time.monotonic_ns(), time.time_ns()
    shown = realtime()
    real_after, after = time.time_ns(), time.monotonic_ns()
    least, most = sorted((now - origin) * ppb // BILLION for now in (before, after))
    assert real_before + offset + least <= shown <= real_after + offset + most


@pytest.mark.parametrize("ppb", [-999_999_999, -30_000, 0, 30_000, BILLION])
def test_monotonic_clock_never_goes_back(ppb):
    monotonic, _ = skewed_clocks(time.monotonic_ns(), ppb, 0)
    shown = [monotonic() for _ in range(5000)]
    assert shown == sorted(shown)


def functions_shown(tmp_path, clocks_of_nodes):
    environment = {name: value for name, value in os.environ.items() if name != TEST_CLOCK}
    if clocks_of_nodes is not None:
        (tmp_path / "clocks.json").write_text(json.dumps(clocks_of_nodes))
        environment[TEST_CLOCK] = str(tmp_path / "clocks.json")
    command = [sys.executable, "-c", SHOW_FUNCTIONS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_without_the_variable_clocks_are_those_of_the_standard_library(tmp_path):
    assert functions_shown(tmp_path, None) == ["True", "True"]


def test_clocks_of_other_nodes_change_nothing_here(tmp_path):
    skew = {"origin_ns": 0, "monotonic_ppb": 1, "realtime_offset_ns": 1}
    assert functions_shown(tmp_path, {"another-node": skew}) == ["True", "True"]


def test_clock_of_this_node_is_taken_from_the_file(tmp_path):
    here = os.uname().nodename.split(".")[0]
    skew = {"origin_ns": 0, "monotonic_ppb": 1, "realtime_offset_ns": 1}
    assert functions_shown(tmp_path, {here: skew}) == ["False", "False"]


@pytest.mark.parametrize("ppb", [30_000, -30_000, 500_000_000])
def test_truth_promises_what_the_clocks_of_hpcprof_show(ppb):
    origin = time.monotonic_ns() - LONG_AGO_NS
    clock = NodeClock(ahead_ns=0, origin_ns=origin, skew=ClockSkew(ppb))
    monotonic, _ = skewed_clocks(origin, ppb, 0)
    before = time.monotonic_ns()
    shown = monotonic()
    after = time.monotonic_ns()
    assert clock.monotonic_ns(before) <= shown <= clock.monotonic_ns(after)
    assert before <= clock.host_monotonic_ns(shown) <= after


@given(clocks(), readings)
def test_inverse_is_the_first_host_reading_that_shows_as_much(clock, host_ns):
    shown = clock.monotonic_ns(host_ns)
    inverse = clock.host_monotonic_ns(shown)
    assert clock.monotonic_ns(inverse) == shown
    assert clock.monotonic_ns(inverse - 1) < shown
    if clock.skew.monotonic_ppb >= 0:
        assert inverse == host_ns


@given(clocks(), clocks(), readings)
def test_offset_leads_from_one_skewed_reading_to_the_other(first, second, host_ns):
    truth = SkewedClocks(env={}, nodes={"node0": first, "node1": second})
    shown = first.monotonic_ns(host_ns)
    led_to = shown + truth.true_offset_ns("node0", "node1", shown)
    assert led_to == second.monotonic_ns(truth.host_monotonic_ns("node0", shown))
    if first.skew.monotonic_ppb >= 0:
        assert led_to == second.monotonic_ns(host_ns)


def test_truth_in_numbers():
    # node1's namespace is 1000 s ahead and gains 30 ppm from host second 50 on
    plain = NodeClock(ahead_ns=0, origin_ns=50 * BILLION)
    fast = NodeClock(1000 * BILLION, 1050 * BILLION, ClockSkew(30_000, 40_000_000))
    truth = SkewedClocks(env={}, nodes={"node0": plain, "node1": fast})
    assert fast.monotonic_ns(50 * BILLION) == 1050 * BILLION
    assert fast.monotonic_ns(150 * BILLION) == 1150 * BILLION + 3_000_000
    assert fast.realtime_ahead_ns(150 * BILLION) == 43_000_000
    assert truth.true_offset_ns("node0", "node1", 150 * BILLION) == 1000 * BILLION + 3_000_000
    back = truth.true_offset_ns("node1", "node0", 1150 * BILLION + 3_000_000)
    assert back == -(1000 * BILLION + 3_000_000)
    assert truth.host_monotonic_ns("node1", 1150 * BILLION + 3_000_000) == 150 * BILLION


def test_a_clock_that_would_stand_still_is_refused():
    with pytest.raises(ValueError, match="stands still"):
        ClockSkew(monotonic_ppb=-BILLION)


def test_namespace_offset_is_read_with_its_sign():
    assert namespace_offset_ns("monotonic  1000 0\nboottime 0 0\n") == 1000 * BILLION
    # the kernel keeps the nanoseconds positive
    assert namespace_offset_ns("monotonic -1 250000000\nboottime 0 0\n") == -750_000_000
    with pytest.raises(ValueError, match="no monotonic clock"):
        namespace_offset_ns("boottime 0 0\n")
