"""What was measured and found in order. Says nothing about what was not measured."""

from __future__ import annotations

from collections.abc import Iterator

from hpcprof.analyses import arrivals, stragglers
from hpcprof.analyses.busy_steps import why_too_few
from hpcprof.analyses.horovod_use import horovod_use
from hpcprof.analyses.link_rates import MIN_NODES, RECEIVES, SENDS, LinkRates
from hpcprof.analyses.run_results import RunResults
from hpcprof.analyses.weights import ALIKE, weight_agreement
from hpcprof.findings.clock_rules import clocks_sentence
from hpcprof.findings.input_rules import marks_input
from hpcprof.findings.interconnect_rules import rate, transport
from hpcprof.findings.model import INFO, Finding
from hpcprof.findings.thresholds import INPUT_WARN_FRAC, STRAGGLER_WARN_FRAC
from hpcprof.trace import columns as c
from hpcprof.units import counted, number_list, percent


def healthy(results: RunResults, findings: list[Finding]) -> Iterator[str]:
    """One sentence for each question that was answered with "in order"."""
    accused = any(f.rule == "rank-arrives-late" and f.level != INFO for f in findings)
    verdict = results.stragglers
    if verdict.status == "ok" and not accused and verdict.spread_frac < STRAGGLER_WARN_FRAC:
        count = counted(len(verdict.lateness_ns), "rank")
        yield (
            f"ranks balanced: none of {count} is late for good (spread "
            f"{percent(verdict.spread_frac)} of the step, over {verdict.steps_used} steps; "
            f"lateness below {percent(stragglers.MIN_LATE_FRAC)} is not looked at)"
        )
    times = results.phase_times
    share = times.share(c.INPUT, verdict.baseline_ranks or times.ranks)
    who = "the typical other rank" if verdict.found else "the typical rank"
    if results.collective_form == arrivals.NONE and len(times.ranks) > 1:
        # whether others wait for a rank is not known: it must not be hidden by the typical one
        share = max(times.share(c.INPUT, [rank]) for rank in times.ranks)
        who = "the rank that waits longest"
    elif len(times.ranks) == 1:
        is_all = results.job.world_size == 1
        who = "the rank" if is_all else f"rank {times.ranks[0]} (of the others it is not known)"
    elif len(times.ranks) < results.job.world_size:
        who += f" (of {len(times.ranks)} that could be compared)"
    judged = marks_input(results) and not why_too_few(results.busy, times.steps)
    if share < INPUT_WARN_FRAC and judged:
        yield f"input keeps up: {who} waits {percent(share)} of the step for its batch"
    yield from _one_model(results)
    yield from _links_alike(results.interconnect.links)
    clocks = clocks_sentence(results)
    if clocks:
        yield clocks


def _one_model(results: RunResults) -> Iterator[str]:
    """Only when Horovod averages gradients and every rank noted its weights."""
    use, agreement = horovod_use(results.ranks), weight_agreement(results.ranks)
    if not use.exchanges or agreement.state != ALIKE or not agreement.changed:
        return
    if len(agreement.ranks) == results.job.world_size:
        yield (
            f"one model: {agreement.variable} is alike on all {len(agreement.ranks)} ranks after "
            f"steps {number_list(agreement.steps)}"
        )


def _links_alike(links: LinkRates) -> Iterator[str]:
    """Only when every node was measured and there are enough to compare."""
    if len(links.nodes) < MIN_NODES or links.unmeasured:
        return
    if links.slow or links.often_slow or links.uneven:
        return
    (slowest, fastest), (least, most) = links.spread_gb_s[SENDS], links.spread_gb_s[RECEIVES]
    yield (
        f"interconnect: at their best moment all {len(links.nodes)} nodes send at {rate(slowest)} "
        f"to {rate(fastest)} and receive at {rate(least)} to {rate(most)}, none at less than half "
        f"of another (measured by the agent, {transport(links)}; a link that is slow at times is "
        "not seen)"
    )
