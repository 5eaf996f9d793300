"""Rules about input that is slow for everybody."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import CRITICAL, WARN, Finding
from hpcprof.findings.registry import rule
from hpcprof.findings.thresholds import INPUT_CRITICAL_FRAC, INPUT_WARN_FRAC
from hpcprof.trace import columns as c
from hpcprof.units import duration, percent


@rule
def all_ranks_wait_for_input(results: RunResults) -> Iterator[Finding]:
    """The typical rank spends a noticeable part of each step waiting for its next batch.

    Fires: every rank waits 60 ms of a 200 ms step for data.
    Stays quiet: one slow rank or node among healthy ones (rank-arrives-late has it); waits below
    5 % of the step.
    """
    times = results.phase_times
    ordinary = results.stragglers.baseline_ranks or times.ranks
    share = times.share(c.INPUT, ordinary)
    if not share >= INPUT_WARN_FRAC:  # also when it is nan
        return
    waits = sorted(
        wait
        for rank, wait in zip(times.ranks, times.median_ns[c.INPUT], strict=True)
        if rank in ordinary
    )
    bound = "" if results.has_device_activity else " (timed on the host: an upper bound)"
    yield Finding(
        rule="all-ranks-wait-for-input",
        level=CRITICAL if share >= INPUT_CRITICAL_FRAC else WARN,
        ranks=ordinary,
        phase=c.INPUT,
        cause="input",
        impact_frac=share,
        message=f"the typical rank waits for its next batch {percent(share)} of each step{bound}",
        evidence=(
            f"median wait per step {duration(waits[0])} to {duration(waits[-1])} over the ranks",
        ),
        advice="give the input pipeline more parallel reads and prefetching (tf.data: "
        "num_parallel_calls, prefetch), or put the data on a faster file system",
        next=(("recipe", "input"),),
    )
