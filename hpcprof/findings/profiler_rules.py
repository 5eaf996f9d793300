"""Rules about the profiler itself: what it cost the training that it recorded."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses.run_results import RunResults
from hpcprof.findings.model import Finding
from hpcprof.findings.registry import rule
from hpcprof.findings.thresholds import PROFILER_INFO_FRAC, profiler_level
from hpcprof.units import percent, percent_interval


@rule
def profiler_slows_training(results: RunResults) -> Iterator[Finding]:
    """The steps that the profiler recorded are longer than those around them.

    Fires: steps 20-59 take 12 % longer than those before and after, at least 7 % for sure.
    Stays quiet: the interval reaches below 5 %; the steps before and after the window differ from
    each other by so much that what changes over the run may explain it; no window was recorded.
    """
    cost = results.overhead
    # against the slower side: a change that goes on through the window cannot exceed that
    at_least = cost.overhead_frac_ci[0] - abs(cost.drift_frac) / 2
    if cost.status != "ok" or not at_least > PROFILER_INFO_FRAC:
        return
    window = f"{cost.first_step}-{cost.last_step}"
    yield Finding(
        rule="profiler-slows-training",
        level=profiler_level(at_least),
        ranks=tuple(cost.by_rank),
        steps=(cost.first_step or 0, cost.last_step or 0),
        cause="profiler",
        message=f"nsys made the steps it recorded ({window}) {percent(cost.overhead_frac)} longer "
        f"{percent_interval(*cost.overhead_frac_ci)}; times within them are too long by that",
        evidence=(
            f"{cost.inside} recorded steps against {cost.each_side} before and {cost.each_side} "
            f"after; those after differ from those before by {percent(cost.drift_frac)}",
        ),
        advice="record fewer steps (profile.steps), or leave out of profile.trace what you do not "
        "look at; what nsys costs outside the window was not measured (compare with a run with "
        "profile.profiler: none)",
    )
