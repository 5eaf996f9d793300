"""Numbers at which something becomes worth saying. Fractions are of the step time."""

from __future__ import annotations

from hpcprof.findings.model import CRITICAL, INFO, WARN

# algorithms, section 3: chosen so that a healthy run reaches warn in at most 2 % of cases
STRAGGLER_INFO_FRAC = 0.02
STRAGGLER_WARN_FRAC = 0.05
STRAGGLER_CRITICAL_FRAC = 0.20
CRITICAL_MIN_STEPS = 15

# xprof's input pipeline analyzer: 5 % is "moderately", 20 % "highly" input-bound
INPUT_WARN_FRAC = 0.05
INPUT_CRITICAL_FRAC = 0.20

# share of the step that transfer takes; the levels of all other findings
TRANSFER_WARN_FRAC = 0.05
TRANSFER_CRITICAL_FRAC = 0.20
# lower end of the interval by which the profiler lengthens the steps it records
PROFILER_INFO_FRAC = 0.05
PROFILER_WARN_FRAC = 0.20

# from here on a slow link would be critical, so that not having looked is worth saying
LINKS_WANTED_FRAC = TRANSFER_CRITICAL_FRAC


def straggler_level(late_frac: float, steps: int) -> str:
    """Level of a straggler that makes the others wait this long in each step."""
    if late_frac >= STRAGGLER_CRITICAL_FRAC and steps >= CRITICAL_MIN_STEPS:
        return CRITICAL
    return WARN if late_frac >= STRAGGLER_WARN_FRAC else INFO


def input_level(wait_frac: float, steps: int) -> str:
    """Level of input that everybody waits for during this share of each step."""
    is_sure = steps >= CRITICAL_MIN_STEPS
    return CRITICAL if wait_frac >= INPUT_CRITICAL_FRAC and is_sure else WARN


def profiler_level(at_least_frac: float) -> str:
    """Level of a profiler that lengthens the recorded steps by at least this share."""
    return WARN if at_least_frac >= PROFILER_WARN_FRAC else INFO


def transfer_level(transfer_frac: float, steps: int) -> str:
    """Level of a slow link when the transfer takes this share of the step; nan is info."""
    if transfer_frac >= TRANSFER_CRITICAL_FRAC and steps >= CRITICAL_MIN_STEPS:
        return CRITICAL
    return WARN if transfer_frac >= TRANSFER_WARN_FRAC else INFO
