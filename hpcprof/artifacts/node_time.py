"""The two clocks of a node, as our records and beacons have them.

Everything hpcprof stamps by itself (spans, beacons, the agent's pings, manifests) asks here. The
reason: in tests on one machine all nodes have the same wall clock and the same rate, so that a
broken alignment would never show. ``HPCPROF_TEST_CLOCK`` names a JSON file that gives each node,
by its name in Slurm (SLURMD_NODENAME), else by host name, a clock of its own:

    {"node1": {"origin_ns": T0, "monotonic_ppb": 30000, "realtime_offset_ns": 40000000}}

    monotonic' = monotonic + (monotonic - T0) * ppb / 1e9
    realtime'  = realtime + offset + (monotonic - T0) * ppb / 1e9

T0 is a reading of the node's own CLOCK_MONOTONIC. Without the variable these are the clocks of the
standard library, and cost the same.
"""

from __future__ import annotations

import json
import os
import time
from typing import Callable

TEST_CLOCK = "HPCPROF_TEST_CLOCK"

monotonic_ns: Callable[[], int] = time.monotonic_ns
realtime_ns: Callable[[], int] = time.time_ns


def skewed_clocks(
    origin_ns: int, monotonic_ppb: int, realtime_offset_ns: int
) -> tuple[Callable[[], int], Callable[[], int]]:
    """Clocks (monotonic, realtime) that run faster by ``monotonic_ppb`` and are set off."""

    def gained(now: int) -> int:
        return (now - origin_ns) * monotonic_ppb // 1_000_000_000

    def monotonic() -> int:
        now = time.monotonic_ns()
        return now + gained(now)

    def realtime() -> int:
        return time.time_ns() + realtime_offset_ns + gained(time.monotonic_ns())

    return monotonic, realtime


def _use_test_clock(path: str) -> None:
    global monotonic_ns, realtime_ns
    with open(path, encoding="utf-8") as stream:
        clocks = json.load(stream)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    wanted = clocks.get(node)
    if wanted:
        monotonic_ns, realtime_ns = skewed_clocks(**wanted)


if os.environ.get(TEST_CLOCK):
    _use_test_clock(os.environ[TEST_CLOCK])
