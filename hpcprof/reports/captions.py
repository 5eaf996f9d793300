"""What stands under the figures: what is to be seen, how far to trust it, what was left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hpcprof.analyses.lateness_map import LatenessMap
from hpcprof.analyses.timeline import Timeline
from hpcprof.trace.columns import ALLREDUCE
from hpcprof.units import counted, duration, number_list, ranks


def timeline_caption(timeline: Timeline, order_note: str) -> Iterator[str]:
    """Sentences for the timeline. ``order_note``: of the Document."""
    yield order_note
    if any(bar.phase == ALLREDUCE and not bar.is_collective for bar in timeline.bars):
        yield (
            "A long allreduce is a rank that waits; the rank with the shortest one is the rank "
            "that the others wait for."
        )
    if any(bar.is_collective for bar in timeline.bars):
        yield "The narrow bars are single collectives, as the profiler recorded them."
    without = sorted(set(timeline.ranks) - {bar.rank for bar in timeline.bars})
    if without:
        yield f"Nothing was recorded in these steps on {ranks(without)}."
    if timeline.dropped:
        yield f"The {counted(timeline.dropped, 'shortest span')} of these steps are not drawn."
    if timeline.ranks_left_out:
        yield (
            f"The latest {len(timeline.ranks)} ranks are drawn, {timeline.ranks_left_out} are not."
        )


def lateness_caption(lateness: LatenessMap) -> Iterator[str]:
    """Sentences for the map of lateness."""
    baseline = lateness.baseline_ranks
    of_whom = f"{ranks(baseline)}, which nobody waits for" if baseline else "all ranks"
    yield (
        "Late: time until ready for the last allreduce of a step, beyond the median of "
        f"{of_whom}. Each length is read on the rank's own clock."
    )
    yield (
        f"Full colour is {duration(lateness.limit_ns)} and more; white is as the others. A red row "
        "is a rank that is late for good, a red column a step in which many were late."
    )
    if lateness.steps_per_bin > 1:
        yield f"One column is the median of {lateness.steps_per_bin} steps."
    if any(value != value for row in lateness.lateness_ns for value in row):  # nan
        yield "Grey: no comparable step."
    if lateness.ranks_left_out:
        yield (
            f"The latest {len(lateness.ranks)} ranks are drawn, {lateness.ranks_left_out} are not."
        )


def accused_caption(drawn: Collection[int], accused: Collection[int]) -> Iterator[str]:
    """What the mark at some ranks means, where there are any."""
    if set(drawn) & set(accused):
        yield "▶ marks ranks that the verdict names."


def timeline_title(timeline: Timeline) -> str:
    """For example "What each rank does in steps 40-42"."""
    noun = "step" if len(timeline.steps) == 1 else "steps"
    return f"What each rank does in {noun} {number_list(timeline.steps)}"
