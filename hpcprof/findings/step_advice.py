"""What would give enough steps to judge a run by."""

from __future__ import annotations

from hpcprof.analyses.run_results import RunResults

_MARK_STEPS = (
    "mark the steps and phases of the training loop with hpcprof.annotate and record at least 20 "
    "steps on every rank"
)
_UNDISTURBED = (
    "run more steps, or record fewer of them (profile.steps), so that at least 20 are left in "
    "which no profiler starts, stops or writes"
)


def more_steps(results: RunResults) -> str:
    """What to do when too few steps could be compared."""
    return _UNDISTURBED if results.busy.are_too_many else _MARK_STEPS
