"""What one burst measures: the other clock, the wall clock, and the links to neighbours.

Knows no transport in particular and writes nothing.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

from hpcprof.artifacts import node_records, node_time
from hpcprof.launch.agent.transport import Exchange, PeerSilentError, Transport

PINGS = 40
KEPT = 5
SMALL_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024
# a link that takes longer for the small message (below 22 MB/s) is not sent the large one
_FAST_NS = 3_000_000
_ROUND_TRIPS = 5
_REPEATS = 3
# an MPI keeps memory for every peer it ever sent to, on the training's nodes
_FARTHEST = 64
_MOST_SILENT = 3
_WALL_READINGS = 5

IsOver = Callable[[], bool]


def narrowest(exchanges: Iterable[Exchange], kept: int = KEPT) -> list[Exchange]:
    """The exchanges with the shortest round trips, shortest first.

    The offset of the clocks is known to half a round trip, so that a long one says less.
    """
    return sorted(exchanges, key=lambda exchange: exchange.round_trip_ns)[:kept]


def clock_burst(transport: Transport, task: int, is_over: IsOver) -> list[Exchange]:
    """Ping ``task`` up to PINGS times; the narrowest of the answers.

    Raises PeerSilentError when there was none.
    """
    exchanges: list[Exchange] = []
    failures: list[PeerSilentError] = []
    for _ in range(PINGS):
        if is_over() or len(failures) == _MOST_SILENT:
            break
        try:
            exchanges.append(transport.ping(task))
        except PeerSilentError as error:
            failures.append(error)
    if not exchanges:
        raise failures[-1] if failures else PeerSilentError("there was no time for a ping")
    return narrowest(exchanges)


def wall_reading() -> dict[str, Any]:
    """Record of the wall clock, in the tightest of a few brackets of the node's own clock."""
    readings = []
    for _ in range(_WALL_READINGS):
        before = node_time.monotonic_ns()
        realtime = node_time.realtime_ns()
        readings.append((before, realtime, node_time.monotonic_ns()))
    before, realtime, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return {
        "kind": node_records.WALL,
        "before_ns": before,
        "realtime_ns": realtime,
        "after_ns": after,
    }


def exchange_record(burst: int, exchange: Exchange) -> dict[str, Any]:
    """Record of one exchange; ``burst`` is its number since the agent's start."""
    return {"kind": node_records.EXCHANGE, "burst": burst, **exchange._asdict()}


def neighbours(task: int, tasks: int, burst: int) -> list[int]:
    """The two tasks that ``task`` of ``tasks`` sends to in a burst; fewer without so many others.

    Burst 0, mostly before the training communicates, leads to the next two in the ring, and
    each burst after it two further on, up to _FARTHEST and then from the start. So all pairs come
    round: who only ever sends to slow nodes looks slow itself. In each burst a task is sent to by
    as many as it sends to.
    """
    farthest = min(tasks - 1, _FARTHEST)
    distances = {(2 * burst + i) % farthest + 1: None for i in range(2)} if farthest else {}
    return [(task + distance) % tasks for distance in distances]


def probe_link(transport: Transport, task: int, is_over: IsOver) -> list[dict[str, Any]]:
    """Send a small and, where that was fast, a large message to ``task``; their link records.

    Of a size that is fast the quickest of a few messages counts: the others waited for a core.
    Raises PeerSilentError.
    """
    round_trip = min(transport.send(task, 0)[1] for _ in range(_ROUND_TRIPS))
    records = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        if is_over():
            break
        start, duration = transport.send(task, size)
        for _ in range(_REPEATS - 1):
            if duration >= _FAST_NS or is_over():
                break
            start, duration = min(
                (start, duration), transport.send(task, size), key=lambda sent: sent[1]
            )
        records.append(
            {
                "kind": node_records.LINK,
                "peer": transport.nodes[task],
                "bytes": size,
                "start_ns": start,
                "duration_ns": duration,
                "round_trip_ns": round_trip,
                "transport": transport.link_name,
            }
        )
        if duration >= _FAST_NS:
            break
    return records
