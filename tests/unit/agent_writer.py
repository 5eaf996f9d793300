"""Writes what node agents leave in a run folder, for tests of what collect makes of it."""

from __future__ import annotations

import json
from typing import Any

from hpcprof.artifacts.paths import ArtifactPaths
from tests.unit.run_writer import START_NS

SECOND_NS = 1_000_000_000
Record = dict[str, Any]


def tell_of_job(paths: ArtifactPaths, **launch: Any) -> None:
    """Make run.json that of a job script, with these settings of launch."""
    record = json.loads(paths.run_json.read_text())
    record["spec"] = {"name": record["name"], "strategy": "horovod"}
    record["launch"].update(launch)
    paths.run_json.write_text(json.dumps(record))


def write_log(paths: ArtifactPaths, text: str) -> None:
    """What the agents and their srun printed."""
    paths.nodes.mkdir(exist_ok=True)
    paths.agent_log.write_bytes(text.encode())


def write_agent(
    paths: ArtifactPaths,
    node: str,
    seconds: float,
    notes: tuple[str, ...] = (),
    *,
    with_end: bool = True,
) -> None:
    """An agent that read its clock every 5 s for the first ``seconds`` of the training.

    Nodes other than node0 compare it with node0's, which shows the same. Each measures one link.
    """
    records: list[Record] = [
        {"kind": "agent", "schema": 1, "node": node, "reference": "node0", "transport": "udp"}
    ]
    records += [{"kind": "note", "text": text} for text in notes]
    for burst in range(int(seconds // 5) + 1):
        now = START_NS + burst * 5 * SECOND_NS
        records.append(_wall(now))
        if node != "node0":
            records.append(_exchange(burst, now))
    if with_end:
        records.append({"kind": "end", "reason": "SIGTERM", "monotonic_ns": now})
    peer = "node1" if node == "node0" else "node0"
    folder = paths.node_folder(node)
    folder.mkdir(parents=True, exist_ok=True)
    paths.node_clock(node).write_text(lines(records))
    paths.node_links(node).write_text(lines([_link(peer, START_NS)]))
    paths.node_samples(node).write_text(lines([_sample(START_NS + int(seconds) * SECOND_NS)]))


def lines(records: list[Record]) -> str:
    """As they stand in a file."""
    return "".join(json.dumps(record) + "\n" for record in records)


def _wall(now: int) -> Record:
    return {"kind": "wall", "before_ns": now, "realtime_ns": now + 10**18, "after_ns": now + 100}


def _exchange(burst: int, now: int) -> Record:
    times = {"sent_ns": now, "arrived_ns": now + 20, "answered_ns": now + 30}
    return {"kind": "exchange", "burst": burst, **times, "received_ns": now + 50}


def _link(peer: str, now: int) -> Record:
    sizes = {"bytes": 65536, "start_ns": now, "duration_ns": 600_000, "round_trip_ns": 50_000}
    return {"kind": "link", "peer": peer, **sizes, "transport": "tcp"}


def _sample(now: int) -> Record:
    return {"kind": "sample", "monotonic_ns": now, "counters": {"cpu_busy_frac": 0.5}, "ranks": {}}
