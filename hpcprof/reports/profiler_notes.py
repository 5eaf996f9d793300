"""What the profiler recorded, what it cost, and which steps it disturbed, in words.

From the record in findings.json; records of earlier versions say nothing of it, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcprof.units import counted, number_list, percent, percent_interval, ranks

_USABLE = ("OK", "PARTIAL")
_MOST_WINDOWS = 3
# steps before and after the window that differ by more make one doubt the comparison
_DRIFT_WORTH_SAYING = 0.02


# how a number begins, how the lack of one, and how one that says nothing
_NSYS = "overhead", "overhead not measured", "overhead"
_NAMING = {
    "nvtx": (
        "naming operations costs",
        "cost of naming operations not measured",
        "what naming operations costs",
    ),
    "tf_profiler": (
        "tf.profiler costs",
        "cost of tf.profiler not measured",
        "what tf.profiler costs",
    ),
}


def profiler_notes(record: dict[str, Any]) -> Iterator[str]:
    """Sentences without a full stop, one per line of the report; none in a run without profiler."""
    yield from _windows(record)
    yield from _overhead(record["quality"].get("profiler_overhead") or {}, _NSYS)
    for name, words in _NAMING.items():
        yield from _overhead(
            (record["quality"].get("naming_overhead") or {}).get(name) or {}, words
        )
    yield from busy_note(record)


def busy_note(record: dict[str, Any]) -> Iterator[str]:
    """Which steps were not compared because a profiler was at work; none when there are none."""
    busy = (record["quality"].get("busy_steps") or {}).get("steps", [])
    if busy:
        yield (
            f"{counted(len(busy), 'step')} left out ({_shortened(busy)}): {_who(record)} started, "
            "stopped or wrote its report"
        )


def _who(record: dict[str, Any]) -> str:
    """The profilers that may have been at work."""
    named = record["quality"].get("named_steps") or {}
    if not named.get("tf_profiler"):
        return "nsys"
    infos = record["quality"]["ranks"]
    has_nsys = any(_usable_window(info["sources"].get("nsys")) for info in infos)
    return "nsys or tf.profiler" if has_nsys else "tf.profiler"


def _usable_window(nsys: dict[str, Any] | None) -> tuple[int, int] | None:
    """First and last step of a report of nsys that can be used."""
    if nsys is None or nsys["state"] not in _USABLE or nsys.get("first_step") is None:
        return None
    return nsys["first_step"], nsys["last_step"]


def _windows(record: dict[str, Any]) -> Iterator[str]:
    """Which steps were recorded, where these are not all."""
    by_window: dict[tuple[int, int], list[int]] = {}
    is_part = False
    for info in record["quality"]["ranks"]:
        window, spans = _usable_window(info["sources"].get("nsys")), info["sources"].get("spans")
        if window is None:
            continue
        by_window.setdefault(window, []).append(info["rank"])
        is_part = is_part or _is_part(window, spans or {})
    if not is_part:
        return
    common = sorted(by_window, key=lambda window: (-len(by_window[window]), window))
    if len(common) == 1:
        yield f"nsys recorded steps {_window(common[0])}"
        return
    shown = [f"{_window(w)} on {ranks(by_window[w])}" for w in common[:_MOST_WINDOWS]]
    left = sum(len(by_window[window]) for window in common[_MOST_WINDOWS:])
    others = f", others on {counted(left, 'more rank')}" if left else ""
    yield f"nsys recorded steps {', '.join(shown)}{others}"


def _is_part(window: tuple[int, int], spans: dict[str, Any]) -> bool:
    """Whether more than a step at either end was not recorded; it may be cut off there."""
    first, last = spans.get("first_step"), spans.get("last_step")
    if first is None or last is None:
        return False
    return bool(window[0] > first + 1 or window[1] < last - 1)


def _window(window: tuple[int, int]) -> str:
    return number_list(range(window[0], window[1] + 1)) if window[0] <= window[1] else "none"


def _shortened(steps: list[int]) -> str:
    """ "20, 60-61"; of many pieces the first and the last step."""
    text = number_list(steps)
    return text if len(text) <= 24 else f"between {steps[0]} and {steps[-1]}"


def _overhead(cost: dict[str, Any], words: tuple[str, str, str]) -> Iterator[str]:
    if cost.get("status") != "ok":
        if cost.get("reason"):
            yield f"{words[1]}: {cost['reason']}"
        return
    frac, side = cost["overhead_frac"], cost["each_side"]
    if abs(cost["drift_frac"]) > max(abs(frac), _DRIFT_WORTH_SAYING):
        yield (
            f"{words[2]} cannot be told here: the steps just after differ from those just before "
            f"by {percent(cost['drift_frac'])} themselves"
        )
        return
    if cost["overhead_frac_ci"][1] < 0:
        yield (
            f"{words[2]} cannot be told here: the recorded steps are shorter than those around "
            f"them ({percent(frac)}), so that something else made the difference"
        )
        return
    text = (
        f"{words[0]} {'+' if frac > 0 else ''}{percent(frac)} of a step "
        f"{percent_interval(*cost['overhead_frac_ci'])} (95 % interval; {cost['inside']} of the "
        f"recorded steps against {side} just before and {side} just after)"
    )
    if abs(cost["drift_frac"]) > _DRIFT_WORTH_SAYING:
        text += (
            f"; those after differ from those before by {percent(cost['drift_frac'])}, so that a "
            "change over the run may be part of it"
        )
    yield text
