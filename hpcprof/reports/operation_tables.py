"""Where the time inside the step goes, in words and tables, from steps with named operations.

From the record in findings.json; records of earlier versions say nothing of it, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from hpcprof.reports.table import Table
from hpcprof.units import counted, duration, number_list, percent, ranks

# in the order of a step
_PHASES = (
    *("input", "h2d", "forward", "backward", "allreduce", "optimizer"),
    *("compute", "checkpoint", "eval", "other"),
)
_SHOWN_FRAC = 0.005
_OTHER_WORTH_SAYING = 0.01  # of the operations' time
_MAX_RANKS = 64
_WITHOUT_NSYS = "NOT_PROFILED"  # state of a rank
_WORDS = {"nsys": "nsys", "recorder": "NVTX recorder", "tfprof": "tf.profiler"}


def operation_facts(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """One line: the shares of a typical rank; none when no operation was named."""
    found = record.get("operations") or {}
    if not found.get("ranks"):
        return
    shares = found["share_frac"]
    # without recorded collectives the operation that hands the tensors over is all that is known
    waits = " with waiting" if record["quality"]["collectives"] != "none" else ""
    shown = [
        f"{name} {percent(shares[name])}{waits if name == 'allreduce' else ''}"
        for name in _shown(found)
    ]
    if not shown:
        return
    shown[0] += " of the step"
    text = f"{_which(record, found)}: {', '.join(shown)}"
    if len(shown) > 1:
        text += f" (they overlap{'; the GPU works later' if found.get('device_ns') else ''})"
    if (found["other_frac"] or 0) >= _OTHER_WORTH_SAYING:
        text += f"; {percent(found['other_frac'])} of the operations' time is in none of them"
    yield "inside", text
    on_gpu = _on_gpu(found)
    if on_gpu:
        shares = ", ".join(f"{name} {duration(ns)}" for name, ns in on_gpu.items())
        yield "", f"the GPU works per step, median of the ranks: {shares}"


def operation_tables(record: dict[str, Any]) -> Iterator[Table]:
    """Per rank, and per replica where a rank has several; none when no operation was named."""
    found = record.get("operations") or {}
    if not found.get("ranks"):
        return
    shown, rows = _shown(found), found["ranks"][:_MAX_RANKS]
    table = tuple(
        (
            *(str(times["rank"]), _source(times["source"]), number_list(times["steps"])),
            *_cells(times, shown),
            _other(times),
        )
        for times in rows
    )
    heads = ("rank", "from", "steps", "step", *shown, "in none")
    yield Table("inside the step, median ms", heads, table, " ".join(_notes(found, shown)))
    if found.get("device_ns"):
        yield _gpu_table(found)
    if found["replicas"]:
        yield _replica_table(found, shown)


def detail_of(record: dict[str, Any], rank: int) -> str:
    """How finely a rank was recorded: "steps; operations 10-29; tf.profiler 30-39"."""
    named = record["quality"].get("named_steps") or {}
    parts = ["steps"]
    for name, words in (("nvtx", "operations"), ("tf_profiler", "tf.profiler")):
        window = (named.get(name) or {}).get(str(rank))
        if window is not None:
            parts.append(f"{words} {_window(window)}")
    return "; ".join(parts) if len(parts) > 1 else "steps only"


def recorded_of(record: dict[str, Any], info: dict[str, Any]) -> str:
    """What of a rank was recorded, in a word or two: "OK", "steps, operations", "PARTIAL".

    A rank without nsys is not one of which nothing is known.
    """
    if info["state"] != _WITHOUT_NSYS:
        return str(info["state"])
    named = record["quality"].get("named_steps") or {}
    is_named = any(str(info["rank"]) in (windows or {}) for windows in named.values())
    return "steps, operations" if is_named else "steps"


def not_told_apart(record: dict[str, Any]) -> Iterator[str]:
    """What cannot be separated in this training, or was asked for and not recorded, and why."""
    yield from _alike(
        record, "phases_not_separable", "forward, backward and optimizer inside the step"
    )
    named = record["quality"].get("named_steps") or {}
    for field, name, what in (
        ("op_steps", "nvtx", "operations inside the step"),
        ("tf_steps", "tf_profiler", "operations and memory, by tf.profiler"),
    ):
        yield from _alike(record, field, what, without=named.get(name) or {})


def _alike(
    record: dict[str, Any], field: str, what: str, without: dict[str, Any] | None = None
) -> Iterator[str]:
    """A sentence per reason that hooks gave; not of the ranks in ``without``."""
    by_reason: dict[str, list[int]] = {}
    for info in record["quality"]["ranks"]:
        reason = (info.get("training") or {}).get(field)
        if reason and str(info["rank"]) not in (without or {}):
            by_reason.setdefault(reason, []).append(info["rank"])
    for reason, numbers in by_reason.items():
        # a range of steps is no reason: they were switched on, and their record was lost
        why = f"named in steps {reason}, and lost" if reason[0].isdigit() else reason
        yield f"{what} of {ranks(numbers)}: {why}"


def _shown(found: dict[str, Any]) -> list[str]:
    return [name for name in _PHASES if (found["share_frac"].get(name) or 0) >= _SHOWN_FRAC]


def _which(record: dict[str, Any], found: dict[str, Any]) -> str:
    numbers = [times["rank"] for times in found["ranks"]]
    whose = "" if len(numbers) == record["run"]["world_size"] else f" on {ranks(numbers)} only"
    if not found["steps"]:
        return f"steps that differ between ranks{whose}"
    # a call of several steps is numbered by the first of them: then nothing is known of the total
    is_every = len(found["steps"]) > 1 and found["steps"][1] == found["steps"][0] + 1
    total = _steps_of_run(record) if is_every else 0
    of = f", {len(found['steps'])} of {total}" if total else ""
    return f"steps {number_list(found['steps'])}{of}{whose}"


def _steps_of_run(record: dict[str, Any]) -> int:
    """Steps of the longest rank, by our own records; 0 when nobody knows."""
    spans = [info["sources"].get("spans") or {} for info in record["quality"]["ranks"]]
    known = [s for s in spans if s.get("first_step") is not None]
    return max((s["last_step"] - s["first_step"] + 1 for s in known), default=0)


def _window(steps: list[int]) -> str:
    return number_list(range(steps[0], steps[-1] + 1)) if steps else "none"


def _source(name: str) -> str:
    return " + ".join(_WORDS.get(part, part) for part in name.split(" + "))


def _cells(times: dict[str, Any], shown: list[str]) -> list[str]:
    values = [times["step_ns"], *(times["union_ns"][name] for name in shown)]
    return [f"{value / 1e6:.1f}" for value in values]


def _other(times: dict[str, Any]) -> str:
    whole = sum(times["sum_ns"].values())
    return percent(times["sum_ns"]["other"] / whole) if whole else "unknown"


def _notes(found: dict[str, Any], shown: list[str]) -> Iterator[str]:
    yield (
        "Time of the step in which at least one thread ran an operation of the phase: phases "
        "overlap, and need not add up to the step; allreduce includes waiting for other ranks "
        "where collectives were recorded, and else only hands the tensors over. "
        "in none: share of the operations' time that is in no phase. On a GPU an operation is the "
        "launch of its kernels. Naming operations lengthens these steps (see profiler, above)."
    )
    if found["spread_frac"]:
        spreads = [f"{name} {percent(found['spread_frac'][name])}" for name in shown]
        yield f"Between the ranks the shares of the step differ by: {', '.join(spreads)}."
    elif len(found["ranks"]) > 1:
        yield "Ranks are not compared: not every rank named its operations in the same steps."
    left = len(found["ranks"]) - _MAX_RANKS
    if left > 0:
        yield f"The first {_MAX_RANKS} ranks are shown, {left} are not."


def _on_gpu(found: dict[str, Any]) -> dict[str, float]:
    """Phase → median over the ranks of the time in which the GPU runs something of it, ns."""
    by_rank = (found.get("device_ns") or {}).values()
    medians = {
        name: float(median([times.get(name, 0.0) for times in by_rank]))
        for name in _PHASES
        if any(name in times for times in by_rank)
    }
    least = _SHOWN_FRAC * max(medians.values(), default=0.0)
    return {name: ns for name, ns in medians.items() if ns > least}


def _gpu_table(found: dict[str, Any]) -> Table:
    shown = list(_on_gpu(found))
    numbers = sorted(found["device_ns"], key=int)
    rows = tuple(
        (number, *(f"{found['device_ns'][number].get(name, 0.0) / 1e6:.1f}" for name in shown))
        for number in numbers[:_MAX_RANKS]
    )
    note = (
        "Time in which the GPU ran at least one kernel or copy that an operation of the phase had "
        "started, over all named steps, by their number. NCCL's kernels are started by other "
        "threads and are not in it."
    )
    return Table("the GPU, per step, ms", ("rank", *shown), rows, note, text_columns=(0,))


def _replica_table(found: dict[str, Any], shown: list[str]) -> Table:
    kept = [name for name in shown if name != "allreduce"]  # a collective is nobody's alone
    rows = tuple(
        (
            *(str(times["rank"]), str(times["replica"])),
            "unknown" if times["launch_ns"] is None else f"{times['launch_ns'] / 1e6:.2f}",
            *_cells(times, kept)[1:],
        )
        for times in found["replicas"][:_MAX_RANKS]
    )
    skews = [
        f"rank {rank}: {duration(skew)}"
        for rank, skew in sorted(found["launch_skew_ns"].items(), key=lambda item: int(item[0]))
    ]
    note = "begins: from the start of the step to the replica's first forward operation."
    if skews:
        note += f" From the first to the last replica that begins, median: {', '.join(skews)}."
    left = len(found["replicas"]) - len(rows)
    if left > 0:
        note += f" {counted(left, 'more replica')} not shown."
    heads = ("rank", "replica", "begins", *kept)
    return Table("replicas, median ms", heads, rows, note, text_columns=(0, 1))
