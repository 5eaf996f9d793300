"""RunResults of a synthetic run, for tests of rules and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd

from hpcprof.align.node_clock import TIGHT, UTC_ONLY, NodeClock
from hpcprof.analyses import arrivals
from hpcprof.analyses.causes import cause
from hpcprof.analyses.interconnect import Interconnect
from hpcprof.analyses.link_rates import LINK_COLUMNS, link_rates
from hpcprof.analyses.phase_times import phase_times
from hpcprof.analyses.run_results import NONE, NodeAgents, RunResults
from hpcprof.analyses.step_matrix import across_ranks
from hpcprof.analyses.stragglers import stragglers
from hpcprof.artifacts import manifest
from hpcprof.launch.agent import measure
from hpcprof.trace.model import JobInfo, Moment, RankInfo, SourceState
from tests.unit.synthetic_run import frames

NS = 1_000_000_000


def rank_info(
    rank: int,
    node: str,
    world_size: int,
    *,
    nsys: str = manifest.OK,
    window: tuple[int, int] = (0, 60),
) -> RankInfo:
    """A rank that ended well after step 60; ``nsys`` is the state of its report of ``window``."""
    sources = {
        "spans": SourceState("spans", manifest.OK, rows=300, first_step=0, last_step=60),
        "nsys": SourceState("nsys", nsys, rows=900, first_step=window[0], last_step=window[1]),
    }
    return RankInfo(
        rank=rank,
        local_rank=0,
        node=node,
        world_size=world_size,
        exit_code=0,
        started=Moment(100 * NS, 10 * NS),
        ended=Moment(200 * NS, 110 * NS),
        state=nsys,
        sources=sources,
    )


def results(
    ranks: int = 4,
    per_node: int = 2,
    extra_ms: Mapping[tuple[int, str], float] | None = None,
    **changes: object,
) -> RunResults:
    """Results of a job with nsys on every rank and no agent, clock-checked by wall clock.

    Override by name.
    """
    matrix = across_ranks(frames(ranks, extra_ms=extra_ms), ranks)
    node_of = {rank: f"node{rank // per_node}" for rank in range(ranks)}
    verdict = stragglers(matrix, node_of)
    nodes = tuple(sorted(set(node_of.values())))
    status, bound = (UTC_ONLY, 20_000_000) if len(nodes) > 1 else (TIGHT, 2_000)
    built = RunResults(
        job=JobInfo("image-cnn", "4711", "horovod", ranks, nodes),
        ranks=tuple(rank_info(rank, node_of[rank], ranks) for rank in range(ranks)),
        missing=(),
        clocks={node: NodeClock(node, 0, 0, 0, bound, "wall clock", status, 4) for node in nodes},
        collective_form=arrivals.PROFILER,
        payload_bytes=1_200_000,
        has_device_activity=True,
        stragglers=verdict,
        causes=tuple(cause(matrix, found, verdict.baseline_ranks) for found in verdict.found),
        phase_times=phase_times(matrix),
        left_out=(),
        job_end=None,
        agents=NodeAgents(NONE),
    )
    return replace(built, **changes)


def link_table(
    rates_gb_s: Mapping[tuple[str, str], float], repeats: int = 3, transport: str = "tcp"
) -> pd.DataFrame:
    """Messages of 8 MB between nodes: (sender, receiver) → GB/s of the best of ``repeats``.

    The others are slower, as messages that meet the training's traffic are.
    """
    size, round_trip = 8_000_000, 50_000
    rows = [
        (node, peer, size, i * NS, round(size / rate * (1 + i)) + round_trip, round_trip, transport)
        for (node, peer), rate in rates_gb_s.items()
        for i in range(repeats)
    ]
    return pd.DataFrame(rows, columns=list(LINK_COLUMNS))


def all_pairs(nodes: int, gb_s: float = 0.64) -> dict[tuple[str, str], float]:
    """Every node to every other at the same rate, for ``link_table``."""
    names = [f"node{i}" for i in range(nodes)]
    return {(a, b): gb_s for a in names for b in names if a != b}


def links_of_agents(
    nodes: int,
    bursts: int,
    rate: Callable[[int, int, int], float],
    *,
    rotate: bool = True,
) -> pd.DataFrame:
    """Messages as agents send them: two neighbours per burst, the large one where that is fast.

    ``rate`` of (sender, receiver, burst) in GB/s; without ``rotate`` it is always the next two.
    """
    round_trip = 50_000
    rows = []
    for burst in range(bursts):
        for task in range(nodes):
            for peer in measure.neighbours(task, nodes, burst if rotate else 0):
                for i, size in enumerate((measure.SMALL_BYTES, measure.LARGE_BYTES)):
                    duration = round(size / rate(task, peer, burst)) + round_trip
                    start = burst * 10 * NS + i * NS
                    ends = f"node{task}", f"node{peer}"
                    rows.append((*ends, size, start, duration, round_trip, "mpi"))
                    if duration >= 3_000_000:  # as measure.probe_link
                        break
    return pd.DataFrame(rows, columns=list(LINK_COLUMNS))


def network(
    transfer_frac: float,
    rates_gb_s: Mapping[tuple[str, str], float] | pd.DataFrame,
    nodes: int,
    steps: int = 60,
    transport: str = "mpi",
) -> Interconnect:
    """An interconnect whose transfer takes this share of the step; the interval is ± 1 %."""
    links = rates_gb_s
    if not isinstance(links, pd.DataFrame):
        links = link_table(links, transport=transport)
    return Interconnect(
        collectives=steps,
        steps=steps,
        transfer_frac=transfer_frac,
        transfer_frac_ci=(transfer_frac - 0.01, transfer_frac + 0.01),
        links=link_rates(links, [f"node{i}" for i in range(nodes)]),
    )
