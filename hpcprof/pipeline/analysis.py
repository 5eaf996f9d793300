"""Store of a run → everything that is computed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hpcprof.align.node_clock import UNCALIBRATED
from hpcprof.analyses import arrivals, op_phases, step_matrix
from hpcprof.analyses import timeline as timelines
from hpcprof.analyses.causes import cause
from hpcprof.analyses.collectives import MatchedCollectives
from hpcprof.analyses.hangs import hang_episodes
from hpcprof.analyses.horovod_phases import HorovodPhases, horovod_phases
from hpcprof.analyses.interconnect import Interconnect, interconnect
from hpcprof.analyses.lateness_map import lateness_map
from hpcprof.analyses.node_reads import node_reads
from hpcprof.analyses.phase_times import phase_times
from hpcprof.analyses.run_results import JobEnd, RunResults
from hpcprof.analyses.shared_steps import (
    MIN_SHARE_OF_MARKED,
    SharedForms,
    SharedSteps,
    shared_forms,
)
from hpcprof.analyses.step_matrix import StepMatrix
from hpcprof.analyses.stragglers import are_connected, stragglers
from hpcprof.pipeline.agents import AgentRecords
from hpcprof.pipeline.ingest import Ingested
from hpcprof.pipeline.named_ops import named_ops
from hpcprof.pipeline.rank_parts import rank_parts, timeline_spans
from hpcprof.pipeline.step_ends import last_ended_steps, measured_overhead, overhead_of_naming
from hpcprof.readers.slurm_accounting import job_record
from hpcprof.reports.figures import figures_record
from hpcprof.trace import columns as c
from hpcprof.trace.model import JobInfo, RankInfo
from hpcprof.trace.store import TraceStore


@dataclass(frozen=True)
class Analysis:
    """What was computed: ``results`` for the findings, ``matrix`` for the figures."""

    results: RunResults
    matrix: StepMatrix


def analyse(ingested: Ingested, job: JobInfo, steps: range | None = None) -> Analysis:
    """Everything that is computed about a run, from its store.

    ``steps``: judge these steps of the training only, and what was measured while they ran; None
    means all.
    """
    store = ingested.store
    infos = tuple(store.rank_info(rank) for rank in store.ranks())
    shared = shared_forms((info.rank, ingested.step_counts[info.rank]) for info in infos)
    if job.world_size == 1 and _are_of_a_window(shared, infos):
        # with nobody to compare, all steps say more than those in which collectives were seen
        shared = shared._replace(lateness=SharedSteps(arrivals.NONE))
    parts = rank_parts(store, shared, steps)
    matrix = step_matrix.across_ranks(parts.frames, job.world_size, parts.busy)
    named = step_matrix.across_ranks(parts.named, job.world_size, parts.busy)
    # without collectives ranks cannot be compared, but each one's own steps can be told
    told = step_matrix.across_ranks(parts.alone, job.world_size, parts.busy)
    told = told if parts.alone else matrix
    operations = named_ops(store, steps)
    collectives = parts.collectives
    connected = are_connected(infos)
    if matrix.busy.are_too_many or not connected:
        collectives = replace(collectives, rows=collectives.rows.head(0))
    node_of = {info.rank: info.node for info in infos}
    verdict = stragglers(matrix, node_of, connected=connected)
    if connected and told.steps and told is not matrix:
        verdict = replace(verdict, reason=f"no collective was recorded in {len(told.steps)} steps")
    agents = ingested.agents if steps is None else _agents_during(ingested, parts.collectives)
    network = interconnect(
        collectives, matrix.median_step_ns, agents.links, node_of, ingested.clocks
    )
    results = RunResults(
        job=job,
        ranks=infos,
        missing=tuple(sorted(set(range(job.world_size)) - set(node_of))),
        clocks=ingested.clocks,
        collective_form=shared.lateness.form,
        payload_bytes=_payload(parts.frames, network, shared),
        has_device_activity=any(_has_kernels(store, info.rank) for info in infos),
        stragglers=verdict,
        causes=tuple(
            cause(matrix, found, verdict.baseline_ranks, named) for found in verdict.found
        ),
        phase_times=phase_times(told),
        left_out=matrix.left_out,
        job_end=_job_end(job.job_id),
        interconnect=network,
        horovod=_horovod(ingested),
        reads=node_reads(agents.samples),
        agents=ingested.agents.outcome,
        transfer_form=shared.transfer.form,
        busy=told.busy,
        overhead=measured_overhead(store, infos, operations.windows),
        hangs=hang_episodes(infos, last_ended_steps(store, infos), parts.frames),
        op_phases=op_phases.across_ranks(
            operations.frames, job.world_size, parts.busy, operations.device_ns
        ),
        named=operations.windows,
        naming_overhead=overhead_of_naming(store, infos, operations.windows),
    )
    return Analysis(results, matrix)


def _are_of_a_window(shared: SharedForms, infos: tuple[RankInfo, ...]) -> bool:
    """Whether collectives were recorded in less than half of the steps of a single rank."""
    spans = [info.sources.get("spans") for info in infos]
    known = [s.last_step - (s.first_step or 0) + 1 for s in spans if s and s.last_step is not None]
    return len(shared.lateness.table) < MIN_SHARE_OF_MARKED * max(known, default=0)


def figures(ingested: Ingested, analysis: Analysis) -> dict[str, Any]:
    """What the figures of the page show, as ``store/figures.json`` has it."""
    results, store = analysis.results, ingested.store
    node_of = {info.rank: info.node for info in results.ranks}
    late = results.stragglers
    steps = timelines.typical_steps(analysis.matrix)
    ranks = timelines.lanes(node_of, node_of, late.lateness_ns) if steps else ()
    spans = timeline_spans(store, ranks, steps)
    return figures_record(
        timelines.timeline(spans, steps, node_of, late.lateness_ns),
        lateness_map(analysis.matrix, late.baseline_ranks, node_of),
    )


def _agents_during(ingested: Ingested, collectives: MatchedCollectives) -> AgentRecords:
    """What the agents measured between the first and the last of the collectives."""
    return replace(
        ingested.agents,
        links=_links_during(ingested, collectives),
        samples=_samples_during(ingested, collectives),
    )


def _links_during(ingested: Ingested, collectives: MatchedCollectives) -> pd.DataFrame:
    """Measurements of the network made between the first and the last of the collectives."""
    links: pd.DataFrame = ingested.agents.links
    if not len(links):
        return links
    kept = [
        _during_them(ingested, collectives, str(node), times)
        for node, times in links.groupby("node", observed=True)[c.START_NS]
    ]
    chosen: pd.DataFrame = links.loc[pd.concat(kept).index.sort_values()]
    return chosen


def _samples_during(ingested: Ingested, collectives: MatchedCollectives) -> dict[str, pd.DataFrame]:
    """Samples of each node taken between the first and the last of the collectives."""
    return {
        node: samples.loc[_during_them(ingested, collectives, node, samples[c.TIME_NS]).index]
        for node, samples in ingested.agents.samples.items()
    }


def _during_them(
    ingested: Ingested, collectives: MatchedCollectives, node: str, times: pd.Series[int]
) -> pd.Series[int]:
    """Those times, on the clock of the node, that lie between those moments; index as given.

    None of a node whose clock nothing ties to the job's.
    """
    rows, clock = collectives.rows, ingested.clocks.get(node)
    if not len(rows) or clock is None or clock.status == UNCALIBRATED:
        nothing: pd.Series[int] = times.head(0)
        return nothing
    first, last = int(rows[c.START_NS].min()), int(rows[c.END_NS].max())
    moments = clock.to_job(times) - ingested.t0_ns
    chosen: pd.Series[int] = times[(moments >= first) & (moments <= last)]
    return chosen


def _horovod(ingested: Ingested) -> HorovodPhases | None:
    timeline = ingested.horovod
    return None if timeline is None else horovod_phases(timeline.operations, timeline.with_ticks)


def _payload(
    frames: Mapping[int, pd.DataFrame], network: Interconnect, shared: SharedForms
) -> int | None:
    """Median allreduce bytes per step; None when the source gave none."""
    medians = [int(frame["bytes"].median()) for frame in frames.values() if len(frame)]
    marked_or_all = max(medians, default=0) or None
    if shared.transfer.form == shared.lateness.form:
        return marked_or_all
    return network.bytes_per_step or marked_or_all  # the profiler saw what was really handed over


def _has_kernels(store: TraceStore, rank: int) -> bool:
    return len(store.read_spans(rank, [c.START_NS], kinds=[c.KERNEL])) > 0


def _job_end(job_id: str) -> JobEnd | None:
    found = job_record(job_id)
    return None if found is None else JobEnd(*found)
