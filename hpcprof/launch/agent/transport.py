"""How agents reach each other: what a transport offers, and the one for an agent without peers."""

from __future__ import annotations

import threading
from typing import Iterable, Mapping, NamedTuple, Protocol


class PeerSilentError(Exception):
    """A peer is not known, not reachable, or did not answer in time."""


class Exchange(NamedTuple):
    """One ping and its answer, ns: sent and received on our clock, the others on the peer's."""

    sent_ns: int
    arrived_ns: int
    answered_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Time on the way, without the peer's time to answer."""
        return (self.received_ns - self.sent_ns) - (self.answered_ns - self.arrived_ns)


class Transport(Protocol):
    """Connects the agent tasks of a job, which are numbered from 0. Used by the main thread."""

    @property
    def name(self) -> str:
        """Word for the records of clocks."""

    @property
    def link_name(self) -> str:
        """Word for the records of links."""

    @property
    def nodes(self) -> Mapping[int, str]:
        """Node name by task, as far as known; holds the own task."""

    def seek(self, tasks: Iterable[int]) -> bool:
        """Look once for those tasks that are not known yet; True when all of them are known."""

    def ping(self, task: int) -> Exchange:
        """One round trip. Raises PeerSilentError."""

    def send(self, task: int, size: int) -> tuple[int, int]:
        """Send ``size`` bytes; start and duration until the peer said that it has them, ns.

        Raises PeerSilentError.
        """

    def rest(self) -> None:
        """The burst is over: give back what was kept for it."""

    def serve(self, seconds: float, stop: threading.Event) -> None:
        """Wait, and answer the others meanwhile; returns early when ``stop`` is set."""

    def close(self) -> None:
        """Take leave. May block, when a peer that should take leave too has died."""


class NoTransport:
    """An agent by itself: the only one of its job, or what is left when its transport broke."""

    name = "none"
    link_name = "none"

    def __init__(self, task: int, node: str) -> None:
        self.nodes: Mapping[int, str] = {task: node}

    def seek(self, tasks: Iterable[int]) -> bool:
        return True  # waiting would find nobody

    def ping(self, task: int) -> Exchange:
        raise PeerSilentError("there is no connection to other nodes")

    def send(self, task: int, size: int) -> tuple[int, int]:
        raise PeerSilentError("there is no connection to other nodes")

    def rest(self) -> None:
        pass

    def serve(self, seconds: float, stop: threading.Event) -> None:
        stop.wait(max(seconds, 0.0))

    def close(self) -> None:
        pass
