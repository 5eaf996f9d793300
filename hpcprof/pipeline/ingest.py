"""Files of a run → store of traces on the job's clock, and what the node agent left.

Twice through the ranks: read each onto the clock of its node, then, when the collectives of all are
known and the clocks of the nodes with them, move each onto the job's clock.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hpcprof import align, readers
from hpcprof.analyses.shared_steps import Counts, SharedSteps, shared_steps, step_counts
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.run_record import launch_settings
from hpcprof.errors import InputError
from hpcprof.pipeline.agents import AgentRecords, read_agents
from hpcprof.pipeline.rank_parts import matched_collectives
from hpcprof.readers.horovod_timeline import HorovodTimeline, read_timeline
from hpcprof.reports.agent_notes import note_sentences
from hpcprof.trace.columns import BUSY, END_NS, KIND
from hpcprof.trace.store import TraceStore

AGENT = -1  # stands for the agent where anchors are kept by rank


@dataclass(frozen=True)
class Ingested:
    """``store`` holds the ranks on the job's clock; ``clocks`` says how well it is known.

    ``t0_ns`` is the origin of the store's times, on the job's clock. ``horovod`` is None when its
    timeline was not recorded. ``step_counts``: of every rank that was read, by rank.
    """

    store: TraceStore
    clocks: Mapping[str, align.NodeClock]
    t0_ns: int
    agents: AgentRecords
    horovod: HorovodTimeline | None
    step_counts: Mapping[int, Counts]
    warnings: tuple[str, ...]


def ingest(paths: ArtifactPaths, store: TraceStore) -> Ingested:
    """Read every rank into ``store``, one at a time, on the job's clock.

    A rank that cannot be read is told in ``warnings`` and left out; it does not spoil the others.
    What the store held before is removed. Raises OSError when it cannot be written.
    """
    warnings: list[str] = []
    # what an earlier collect left may be of ranks that can no longer be read
    shutil.rmtree(store.path, ignore_errors=True)
    work = store.path / "work"
    try:
        anchors = _read_anchors(paths, warnings)
        unaligned = TraceStore(work / "unaligned")
        counts, trained_until_ns = _read_ranks(paths, anchors, unaligned)
        agents = read_agents(paths, trained_until_ns)
        clocks = _fit(unaligned, shared_steps(counts.items()), anchors, agents)
        warnings += note_sentences((note.nodes, note.text) for note in agents.outcome.notes)
        warnings += [text for clock in clocks.values() for text in clock.warnings]
        t0_ns = align.job_start(clocks, anchors)
        for rank in unaligned.ranks():
            trace = unaligned.read(rank)
            try:
                store.write(align.apply(trace, clocks[trace.rank.node], t0_ns))
            except InputError as error:
                warnings.append(str(error))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    horovod = _read_horovod(paths, warnings)
    return Ingested(store, clocks, t0_ns, agents, horovod, counts, tuple(warnings))


def _read_horovod(paths: ArtifactPaths, warnings: list[str]) -> HorovodTimeline | None:
    if not paths.horovod_timeline.exists():
        return None
    try:
        timeline = read_timeline(paths.horovod_timeline)
    except InputError as error:
        warnings.append(str(error))
        return None
    warnings += [f"Horovod's timeline: {text}" for text in timeline.warnings]
    return timeline


def _read_anchors(paths: ArtifactPaths, warnings: list[str]) -> dict[str, dict[int, pd.DataFrame]]:
    anchors: dict[str, dict[int, pd.DataFrame]] = {}
    for rank in paths.rank_ids():
        try:
            node, table = readers.read_anchors(paths, rank)
        except InputError as error:
            warnings.append(str(error))
            continue
        anchors.setdefault(node, {})[rank] = table
    return anchors


def _read_ranks(
    paths: ArtifactPaths, anchors: Mapping[str, Mapping[int, pd.DataFrame]], store: TraceStore
) -> tuple[dict[int, Counts], dict[str, int]]:
    """Fill ``store``.

    Returns how many collectives each rank has in which step, and when the last span of each node
    ended (ns, on the node's clock; 0 without any).
    """
    tools = readers.find_tools(_nsys_setting(paths))
    exports = store.path.parent / "exports"
    exports.mkdir(parents=True, exist_ok=True)
    counts = {}
    ends = dict.fromkeys(anchors, 0)
    for node, ranks in anchors.items():
        for rank in ranks:
            trace = readers.read_rank(paths, rank, exports, tools)
            store.write(trace)
            counts[rank] = step_counts(trace.spans)
            if len(trace.spans):
                ends[node] = max(ends[node], _trained_until_ns(trace.spans))
    return counts, ends


def _trained_until_ns(spans: pd.DataFrame) -> int:
    """End of the last span but those in which the profiler writes: it does so afterwards too."""
    training = spans.loc[spans[KIND] != BUSY, END_NS]
    return int(training.max()) if len(training) else 0


def _fit(
    store: TraceStore,
    shared: SharedSteps,
    anchors: Mapping[str, Mapping[int, pd.DataFrame]],
    agents: AgentRecords,
) -> dict[str, align.NodeClock]:
    """The best clock of each node on which ranks ran."""
    node_of = {rank: node for node, ranks in anchors.items() for rank in ranks}
    with_agents = {
        node: {**ranks, **({AGENT: agents.walls[node]} if node in agents.walls else {})}
        for node, ranks in anchors.items()
    }
    return align.fit_nodes(
        with_agents,
        exchanges=agents.exchanges,
        reference=agents.reference,
        collectives=matched_collectives(store, shared).rows,
        node_of=node_of,
    )


def _nsys_setting(paths: ArtifactPaths) -> str | None:
    """Where the job looked for nsys, if its record names a place."""
    try:
        setting = launch_settings(paths.run_json)["nsys_path"]
    except InputError:
        return None
    return None if setting is None else str(setting)
