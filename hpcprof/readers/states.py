"""How complete a source is, and a rank's recording as a whole. Judged by content, never by names.

An exit code of 0 and a file that exists prove nothing: nsys exits 0 with its report lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from hpcprof.artifacts import manifest
from hpcprof.readers.manifest_reader import RankManifest
from hpcprof.readers.nsys_clock import Placement
from hpcprof.readers.nsys_sqlite import NsysExport
from hpcprof.readers.nvtx_record import SOURCE as RECORDER
from hpcprof.readers.nvtx_record import NvtxRecord
from hpcprof.readers.spans_reader import SpanRecords
from hpcprof.readers.steps import step_numbers
from hpcprof.trace.columns import END_NS, KIND, START_NS, STEP, STEP_KIND
from hpcprof.trace.model import RankInfo, SourceState

# our NVTX ranges start some µs apart from our records of the same step; a preempted rank loses a
# time slice in between, rarely in half of all steps
_STEP_START_TOLERANCE_NS = 1_000_000
# from this version on the package nvtx records nothing under old nsys (2022.4, 2023.2 seen)
_NVTX_TOO_NEW = (0, 2, 12)
_NVTX = "nvtx"  # as nsys names what it can record
# how launch ends a reason; without it the same is said of all ranks, and told once
_SIZE_RE = re.compile(r"; (nsys report|raw recording), [0-9]+ bytes.*\Z")


def lost(name: str, reason: str) -> SourceState:
    """A source of which nothing can be used; ``reason`` goes on in other sentences."""
    return SourceState(name, manifest.LOST, reason.removesuffix("."))


def spans_state(own: SpanRecords) -> SourceState:
    """State of spans.bin."""
    state, reason = manifest.OK, ""
    if not len(own.spans):
        state, reason = manifest.EMPTY, "the file was opened and holds no span"
    elif own.torn or own.damaged:
        state, reason = manifest.PARTIAL, own.warnings[0]
    found = SourceState("spans", state, reason, clock_bound_ns=0, warnings=own.warnings)
    found = with_steps(found, own.spans, own.spans)  # behind the last step a model may be saved
    if found.rows and not len(step_numbers(own.spans)):
        found = replace(found, warnings=(*found.warnings, "no step was recorded"))
    return found


def recorder_state(found: NvtxRecord) -> SourceState:
    """State of nvtx.bin, before its spans have steps."""
    state, reason = manifest.OK, ""
    if not len(found.spans) and not len(found.own):
        state, reason = manifest.EMPTY, "the recorder was loaded and heard of no range"
    elif found.torn or found.damaged:
        state, reason = manifest.PARTIAL, found.warnings[0]
    return SourceState(RECORDER, state, reason, clock_bound_ns=0, warnings=found.warnings)


def no_ranges(record: RankManifest) -> str:
    """What to say of a report in which none of our NVTX ranges arrived."""
    if record.traced is not None and _NVTX not in record.traced:
        return "nvtx is not in profile.trace, so steps are not in the report"
    version = record.notes.nvtx_version
    if not version:
        return (
            "the report holds no step range of hpcprof. The nvtx package may not fit this nsys "
            "(0.2.12 and newer record nothing under old versions); see hpcprof doctor"
        )
    pair = f"nvtx {version} and nsys {record.profiler_version or 'of unknown version'}"
    mend = "; pip install 'nvtx<0.2.12'" if _numbers(version) >= _NVTX_TOO_NEW else ""
    return f"{pair}: no NVTX range arrived{mend}; hpcprof doctor checks the pair"


def as_launch_said(state: SourceState, record: RankManifest) -> SourceState:
    """The state of a usable report, with what launch says it lacks (stopped early, for example)."""
    if record.state != manifest.PARTIAL or not record.state_reason:
        return state
    reasons = [_SIZE_RE.sub("", record.state_reason), state.reason]
    reason = "; ".join(text for text in reasons if text)
    return replace(state, state=manifest.PARTIAL, reason=reason)


def nsys_state(
    export: NsysExport,
    placement: Placement,
    copies: pd.DataFrame,
    own: pd.DataFrame | None,
    without_ranges: str,
) -> SourceState:
    """State of a placed report. ``copies`` are our ranges in it, ``own`` our records if any.

    ``without_ranges``: the problem, in words, when none of our ranges is there and should be.
    """
    problems = []
    none_arrived = not len(copies) and not len(export.beacons)
    if own is not None and none_arrived and _ran_a_step(own, placement.apply(export.spans)):
        problems.append(without_ranges)  # first: it is why there is no beacon either
    if placement.is_guess:
        problems.append(
            "the report holds no beacon, so its times follow from its UTC start and may be "
            f"{placement.bound_ns / 1e6:.0f} ms off"
        )
    notes = list(export.warnings)
    if placement.drift_ppb:
        notes.append(f"the report's clock drifts by {placement.drift_ppb} ppb; corrected")
    if own is not None and len(copies):
        problems += _compare(copies, own, placement.bound_ns)
    return SourceState(
        "nsys",
        manifest.PARTIAL if problems else manifest.OK,
        problems[0] if problems else "",
        clock_bound_ns=placement.bound_ns,
        warnings=(*problems, *notes),
    )


def with_steps(
    state: SourceState, spans: pd.DataFrame, copies: pd.DataFrame | None = None
) -> SourceState:
    """The state with the row count and the first and last step of the spans kept.

    Where the source has ranges of whole steps, ``copies``, the steps are those: of the step after
    a recording was stopped there may be a few spans.
    """
    steps = spans[STEP].dropna()
    if copies is not None and len(step_numbers(copies)):
        steps = step_numbers(copies)
    return replace(
        state,
        rows=len(spans),
        first_step=int(steps.min()) if len(steps) else None,
        last_step=int(steps.max()) if len(steps) else None,
    )


def recording_state(sources: Mapping[str, SourceState], record: RankManifest) -> tuple[str, str]:
    """State and reason of the rank: what was asked for against what arrived.

    What comes on top of spans and nsys makes no rank worse than one without it: it saves one of
    which nothing else is left, and what it lacks itself is told with the source.
    """
    spans, nsys = sources["spans"], sources["nsys"]
    on_top = [source for name, source in sources.items() if name not in ("spans", "nsys")]
    reasons = [f"{source.name}: {source.reason}" for source in (spans, nsys) if source.reason]
    ended = describe(record.info)
    if ended:
        reasons.append(ended)
    was_killed = record.info.ended is None
    if not spans.is_usable and not nsys.is_usable:
        only_empty = manifest.EMPTY in (spans.state, nsys.state)
        state = manifest.EMPTY if only_empty else manifest.LOST
        if any(source.is_usable for source in on_top):
            state = manifest.PARTIAL
    elif (
        was_killed or spans.state != manifest.OK or nsys.state in (manifest.PARTIAL, manifest.LOST)
    ):
        state = manifest.PARTIAL
    else:
        state = nsys.state  # OK, EMPTY or NOT_PROFILED
    return state, "; ".join(reasons)


def describe(info: RankInfo) -> str:
    """How the rank ended, in words; "" for a normal end."""
    if info.ended is None:
        return "the rank was killed together with its launcher (time limit or node failure)"
    if info.exit_code is None:
        return "the rank ended without an exit code"
    return "" if info.exit_code == 0 else f"the rank ended with exit code {info.exit_code}"


def _ran_a_step(own: pd.DataFrame, seen: pd.DataFrame) -> bool:
    """Whether a whole step of ours lies within the report. Both are on the node's clock."""
    if not len(seen):
        return False
    steps = own[own[KIND] == STEP_KIND]
    inside = (steps[START_NS] >= seen[START_NS].min()) & (steps[END_NS] <= seen[END_NS].max())
    return bool(inside.any())


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it by; () when it has none."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", version)[:3])


def _compare(copies: pd.DataFrame, own: pd.DataFrame, bound_ns: int) -> list[str]:
    """What does not agree between our NVTX ranges and our records, within nsys's window."""
    seen = copies[copies[KIND] == STEP_KIND].drop_duplicates(STEP)
    recorded = own[own[KIND] == STEP_KIND].drop_duplicates(STEP)
    if not len(recorded) or not len(seen):
        return []  # a window may be shorter than a step
    window = recorded[recorded[STEP].between(seen[STEP].min(), seen[STEP].max())]
    problems = []
    if len(window) != len(seen):
        problems.append(
            f"the report holds {len(seen)} steps where hpcprof recorded {len(window)} "
            f"(steps {seen[STEP].min()} to {seen[STEP].max()})"
        )
    both = seen[[STEP, START_NS]].merge(window[[STEP, START_NS]], on=STEP, suffixes=("", "_own"))
    apart = (both[START_NS] - both[f"{START_NS}_own"]).abs().median() if len(both) else 0
    if apart > bound_ns + _STEP_START_TOLERANCE_NS:
        problems.append(
            f"the report's steps start {apart / 1e6:.1f} ms (median) from where hpcprof recorded "
            "them: its clock was placed wrong"
        )
    return problems
