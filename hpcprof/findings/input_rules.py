"""Rules about input that is slow for everybody."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses.busy_steps import why_too_few
from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import INFO, NOT_COLLECTED, Finding
from hpcprof.findings.registry import rule
from hpcprof.findings.step_advice import more_steps
from hpcprof.findings.thresholds import INPUT_WARN_FRAC, input_level
from hpcprof.trace import columns as c
from hpcprof.units import duration, percent


@rule
def all_ranks_wait_for_input(results: RunResults) -> Iterator[Finding]:
    """The typical rank spends a noticeable part of each step waiting for its next batch.

    Fires: every rank waits 60 ms of a 200 ms step for data.
    Stays quiet: one slow rank or node among healthy ones (rank-arrives-late has it); waits below
    5 % of the step; fewer than 5 comparable steps (input-not-assessed).
    """
    times = results.phase_times
    if why_too_few(results.busy, times.steps):
        return
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
    who, span = "the typical rank", f" to {duration(waits[-1])} over the ranks"
    if len(waits) == 1:
        who, span = f"rank {ordinary[0]}", ""
    yield Finding(
        rule="all-ranks-wait-for-input",
        level=input_level(share, times.steps),
        ranks=ordinary,
        phase=c.INPUT,
        cause="input",
        impact_frac=share,
        message=f"{who} waits for its next batch {percent(share)} of each step{bound}",
        evidence=(f"median wait per step {duration(waits[0])}{span}",),
        advice="give the input pipeline more parallel reads and prefetching (tf.data: "
        "num_parallel_calls, prefetch), or put the data on a faster file system",
        next=(("recipe", "input"),),
    )


@rule
def input_not_assessed(results: RunResults) -> Iterator[Finding]:
    """Nobody knows whether the input keeps up: too few steps, or no wait for it was ever marked.

    Fires: fewer than 5 comparable steps, also on a single rank; a profiler was starting, stopping
    or writing in more steps than are left, and fewer than 20 are left; no phase input.
    Stays quiet: whenever the input could be judged, also when it keeps up.
    """
    reason = why_too_few(results.busy, results.phase_times.steps)
    if not reason:
        if not marks_input(results):
            yield _unmarked(results)
        return
    what = "whether the input keeps up"
    if results.busy.are_too_many:
        what = f"how long a step takes and where it goes, what the transfer takes, and {what}"
    yield Finding(
        rule="input-not-assessed",
        level=INFO,
        status=NOT_COLLECTED,
        message=f"{what}: {reason}",
        advice=more_steps(results),
    )


def marks_input(results: RunResults) -> bool:
    """Whether a rank has marked phase input: a wait that was timed takes more than 0 ns."""
    return any(wait > 0 for wait in results.phase_times.median_ns.get(c.INPUT, ()))


def _unmarked(results: RunResults) -> Finding:
    trainings = [info.training for info in results.ranks if info.training is not None]
    reasons = {t.input_not_separable for t in trainings if t.input_not_separable}
    if reasons:
        return Finding(
            rule="input-not-assessed",
            level=INFO,
            status=NOT_COLLECTED,
            message="whether the input keeps up: the wait for it is not told apart "
            f"({'; '.join(sorted(reasons))})",
        )
    return Finding(
        rule="input-not-assessed",
        level=INFO,
        status=NOT_COLLECTED,
        message="whether the input keeps up: the training marks no wait for its next batch",
        advice="iterate over annotate.data(dataset) instead of the data set, or mark the wait as "
        'phase("input")',
    )
