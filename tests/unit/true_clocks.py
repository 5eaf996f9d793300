"""Node clocks with a known truth: what agents, beacons and collectives would have recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hpcprof.align.drift import RHO_PPB
from hpcprof.trace import anchors_frame

S = 1_000_000_000
EPOCH_NS = 1_764_547_200_123_456_789


@dataclass
class TrueClock:
    """A node's clocks as functions of true time (int64 ns since the run began).

    The rate wanders around ``ppb`` by so little that no two rates of two nodes against each other
    differ by more than rho. ``step_ns`` is added to the clock from ``step_at_ns`` on.
    """

    boot_ns: int
    wall_ns: int
    ppb: float
    seconds: int
    rng: np.random.Generator
    step_at_ns: int = 2**62
    step_ns: int = 0
    gained: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        knots = self.seconds + 400
        walk = np.cumsum(self.rng.normal(0, 1, knots))
        reach = np.abs(walk - walk.mean()).max()
        shape = (walk - walk.mean()) / reach if self.rng.random() < 0.5 else np.sign(walk)
        rates = self.ppb + shape * RHO_PPB / 4 * 0.98
        gained = np.concatenate([[0.0], np.cumsum(rates)])
        self.gained = gained - gained[200]

    def monotonic(self, true_ns: np.ndarray) -> np.ndarray:
        """CLOCK_MONOTONIC; true times from -200 s to 200 s after the run."""
        grid = (np.arange(len(self.gained)) - 200.0) * S
        gained = np.floor(np.interp(true_ns.astype(float), grid, self.gained)).astype(np.int64)
        return (
            self.boot_ns + true_ns + gained + np.where(true_ns >= self.step_at_ns, self.step_ns, 0)
        )

    def anchors(self, true_ns: np.ndarray) -> pd.DataFrame:
        """Beacons of 500 ns width."""
        before = self.monotonic(true_ns)
        return anchors_frame(
            {
                "seq": np.arange(len(before)),
                "before_ns": before,
                "after_ns": before + 500,
                "realtime_ns": before + 200 - self.boot_ns + EPOCH_NS + self.wall_ns,
            }
        )


class Job:
    """Some nodes, node0 the reference, and what they recorded in a run of so many seconds."""

    def __init__(self, seed: int, nodes: int, seconds: int, ppb: float = 50_000) -> None:
        self.rng = np.random.default_rng(seed)
        self.seconds = seconds
        self.clocks = {
            f"node{i}": TrueClock(
                boot_ns=int(self.rng.integers(100 * S, 9_000_000 * S)),
                wall_ns=int(self.rng.normal(0, 8_000_000)),
                ppb=float(self.rng.uniform(-ppb, ppb)),
                seconds=seconds,
                rng=self.rng,
            )
            for i in range(nodes)
        }
        self.node_of = {2 * i + j: f"node{i}" for i in range(nodes) for j in range(2)}

    def anchors(self) -> dict[str, dict[int, pd.DataFrame]]:
        """Beacons at the start, every 10 s and at the end, by one rank of each node."""
        times = np.append(np.arange(0, self.seconds, 10), self.seconds) * S
        return {node: {2 * i: clock.anchors(times)} for i, (node, clock) in self._numbered()}

    def exchanges(self, every_s: float = 30.0, pings: int = 20) -> dict[str, pd.DataFrame]:
        """Bursts from the start to the end: round trips of 60 us and more, some of 20 ms."""
        at = np.append(np.arange(0, self.seconds, every_s), self.seconds)
        return {
            node: self._bursts(clock, at, pings) for node, clock in list(self.clocks.items())[1:]
        }

    def _bursts(self, clock: TrueClock, at: np.ndarray, pings: int) -> pd.DataFrame:
        reference = self.clocks["node0"]
        rows = []
        for burst, second in enumerate(at):
            sent = int(second * S) + np.arange(pings) * 25_000_000 // 100
            ways = 25_000 + self.rng.exponential([[12_000], [4_000]], (2, pings)).astype(np.int64)
            ways += (self.rng.random((2, pings)) < 0.1) * 10_000_000
            arrived = sent + ways[0]
            answered = arrived + 3_000
            table = pd.DataFrame(
                {
                    "burst": burst,
                    "sent_ns": clock.monotonic(sent),
                    "received_ns": clock.monotonic(answered + ways[1]),
                    "arrived_ns": reference.monotonic(arrived),
                    "answered_ns": reference.monotonic(answered),
                }
            )
            rows.append(table.iloc[np.argsort(ways.sum(axis=0))[:5]])
        return pd.concat(rows, ignore_index=True)

    def collectives(
        self,
        count: int = 200,
        tiny_every: int = 5,
        late: dict[str, int] | None = None,
        skew_ns: dict[str, int] | None = None,
    ) -> pd.DataFrame:
        """Allreduces of 2 to 6 ms, every ``tiny_every``-th of 30 us (0: none).

        ``late``: how much later the ranks of a node start, mostly; ``skew_ns``: how much later
        they end, growing from nothing to that over the run.
        """
        at = np.sort(self.rng.integers(0, self.seconds * S, count))
        ranks = len(self.node_of)
        starts = at[:, None] + self.rng.exponential(300_000, (count, ranks)).astype(np.int64)
        ends_later = self.rng.exponential(3_000, (count, ranks)).astype(np.int64)
        for rank, node in self.node_of.items():
            is_late = self.rng.random(count) < 0.7
            starts[:, rank] += is_late * (late or {}).get(node, 0)
            ends_later[:, rank] += np.linspace(0, (skew_ns or {}).get(node, 0), count).astype(int)
        lasts = self.rng.integers(2_000_000, 6_000_000, count)
        if tiny_every:
            lasts[::tiny_every] = 30_000
        ends = (starts.max(axis=1) + lasts)[:, None] + ends_later
        return pd.concat(
            [
                pd.DataFrame(
                    {
                        "rank": rank,
                        "step": np.arange(count) // 10,
                        "seq": np.arange(count) % 10,
                        "start_ns": self.clocks[node].monotonic(starts[:, rank]),
                        "end_ns": self.clocks[node].monotonic(ends[:, rank]),
                    }
                )
                for rank, node in self.node_of.items()
            ],
            ignore_index=True,
        )

    def errors(self, fitted: dict, true_ns: np.ndarray | None = None) -> dict[str, tuple]:
        """Node -> (error of its times against node0's, its bound plus node0's), int64 ns."""
        if true_ns is None:
            true_ns = np.linspace(-100 * S, (self.seconds + 100) * S, 2_001).astype(np.int64)
        own = self.clocks["node0"].monotonic(true_ns)
        found = {}
        for node, clock in self.clocks.items():
            times = clock.monotonic(true_ns)
            error = np.abs(fitted[node].to_job(times) - fitted["node0"].to_job(own))
            found[node] = (error, fitted[node].bound_at(times) + fitted["node0"].bound_at(own))
        return found

    def _numbered(self):
        return enumerate(self.clocks.items())
