"""What the recording itself was like: clocks and data quality as tables, and what gaps mean.

From the record in findings.json, like the rest of the Document. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcprof.reports.operation_tables import detail_of
from hpcprof.reports.profiler_notes import busy_note
from hpcprof.reports.table import Table
from hpcprof.units import counted, duration, number_list, ranks

_ATTACHED = "attached"  # the state of a hook in training.json; else it says why not
_UTC_ONLY = "utc-only"  # as in findings.schema.json
# beyond this share of the step a shift between two nodes is as large as what one looks for
_READABLE_FRAC = 0.05
_MAX_NODES_NAMED = 3
# the end of a GPU's UUID, enough to see two alike; in large jobs each rank would have its own row
_UUID_LETTERS = 4
_MAX_UUIDS = 64


def order_note(record: dict[str, Any]) -> str:
    """Whether the order of events on different nodes can be read off a timeline of this run."""
    clocks = record["clocks"]
    unknown = sorted(node for node, clock in clocks.items() if clock["bound_ns"] is None)
    if unknown:
        return (
            "Order between nodes cannot be read off this picture: nothing ties the clock of "
            f"{', '.join(unknown)} to the others."
        )
    if len(clocks) < 2:
        return "All ranks are on one node and share its clock."
    bounds = sorted(clock["bound_ns"] for clock in clocks.values())
    bound_ns = bounds[-1] + bounds[-2]  # each is one node's own error
    if any(clock["status"] == _UTC_ONLY for clock in clocks.values()):
        why = "their clocks were compared by the wall clock only"
    elif bound_ns > _READABLE_FRAC * (record["run"]["step_ns"] or 0):
        why = "that is much of a step"
    else:
        return (
            f"Clocks of the nodes agree within ± {duration(bound_ns)}; events on different nodes "
            "that are closer than that have no order."
        )
    return (
        f"Order between nodes cannot be read off this picture (± {duration(bound_ns)}): {why}. "
        "Lengths, and order within a node, can."
    )


def clock_table(record: dict[str, Any]) -> Table:
    """One row per node: how its clock relates to the others, and how well that is known."""
    clocks = sorted(record["clocks"].items())
    reference = clocks[0][1]["offset_ns"] if clocks else 0
    rows = []
    warnings: list[str] = []
    for node, clock in clocks:
        bound = clock["bound_ns"]
        is_fitted = clock["status"] != _UTC_ONLY and len(clocks) > 1
        rows.append(
            (
                node,
                f"{(clock['offset_ns'] - reference) / 1e9:+.6f}",
                f"{clock['drift_ppb'] / 1e3:+.3f}" if is_fitted else "not fitted",
                duration(clock["residual_ns"]),
                "unknown" if bound is None else f"± {duration(bound)}",
                clock["method"],
                clock["status"],
            )
        )
        warnings += clock.get("warnings", [])
        if clock.get("violations"):
            warnings.append(
                f"{node}: {counted(clock['violations'], 'collective')} contradict these bounds."
            )
    first = clocks[0][0] if clocks else "the first node"
    note = f"offset: what is added to the node's own clock, against {first}. bound: the largest "
    note += "error of this node's times; between two nodes both add up. The verdict compares "
    note += "lengths only, each read on one clock, so no clock error can accuse a rank."
    heads = ("node", "offset s", "drift ppm", "residual", "bound", "method", "status")
    return Table("clocks", heads, tuple(rows), " ".join([note, *warnings]), text_columns=(0, 5, 6))


def quality_table(record: dict[str, Any]) -> Table:
    """What each rank recorded; ranks of which the same is to be said share a row."""
    infos = record["quality"]["ranks"]
    with_gpus = any(info.get("gpus") is not None for info in infos)
    names = sorted({name for info in infos for name in info["sources"]}, key=_own_first)
    with_detail = any(info.get("training") for info in infos) or _is_named(record)
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for info in infos:
        gpus = [_gpus(info, with_uuid=len(infos) <= _MAX_UUIDS)] if with_gpus else []
        detail = [detail_of(record, info["rank"])] if with_detail else []
        states, said = _quality_row(info, names)
        alike.setdefault((*states, *detail, *gpus, said), []).append(info)
    rows = [
        (number_list(info["rank"] for info in group), _nodes(group), *row)
        for row, group in alike.items()
    ]
    missing = record["quality"]["missing"]
    if missing:
        nothing = ["nothing" for _ in names] + [""] * (2 + with_gpus + with_detail)
        rows.append((number_list(missing), "", *nothing, _NOTHING_LEFT))
    added = [head for head, is_there in (("detail", with_detail), ("GPU", with_gpus)) if is_there]
    heads = ("ranks", "node", *names, "steps", "exit code", *added, "missing, and warnings")
    everything = tuple(range(len(heads)))
    note = " ".join(_gaps(record))
    return Table("what was recorded", heads, tuple(rows), note, text_columns=everything)


_NOTHING_LEFT = "left no readable recording"


def _own_first(name: str) -> tuple[bool, str]:
    return name != "spans", name


def _quality_row(info: dict[str, Any], names: list[str]) -> tuple[tuple[str, ...], str]:
    """States, steps and exit code of a rank, and what else is to be said of it."""
    sources = info["sources"]
    states = [sources[name]["state"] if name in sources else "none" for name in names]
    firsts = [s["first_step"] for s in sources.values() if s.get("first_step") is not None]
    lasts = [s["last_step"] for s in sources.values() if s.get("last_step") is not None]
    steps = f"{min(firsts)}–{max(lasts)}" if firsts else "none"
    exit_code = "no end record" if not info.get("ended") else str(info.get("exit_code"))
    said = [f"{name}: {s['reason']}" for name, s in sources.items() if s.get("reason")]
    said += [
        f"{name}: {warning}" for name, s in sources.items() for warning in s.get("warnings", [])
    ]
    said += info.get("warnings", [])
    said += _hooks_that_failed(info.get("training") or {})
    return (*states, steps, exit_code), "; ".join(said) or "none"


def _is_named(record: dict[str, Any]) -> bool:
    """Whether operations were named on any rank."""
    return any((record["quality"].get("named_steps") or {}).values())


def _hooks_that_failed(training: dict[str, Any]) -> list[str]:
    hooks = training.get("hooks") or {}
    return [f"hook {name} {state}" for name, state in sorted(hooks.items()) if state != _ATTACHED]


def _gpus(info: dict[str, Any], *, with_uuid: bool) -> str:
    """Which GPUs a rank sees: "A100 (…1c3f)", "4 × A100", "none"."""
    gpus = info.get("gpus")
    if gpus is None:
        return "not read"
    if len(gpus) != 1:
        names = sorted({gpu["name"] or "unknown GPU" for gpu in gpus})
        return f"{len(gpus)} × {', '.join(names)}" if gpus else "none"
    name, uuid = gpus[0]["name"] or "GPU", gpus[0]["uuid"]
    if not with_uuid:
        return str(name)
    return f"{name} (…{uuid[-_UUID_LETTERS:]})" if uuid else f"{name} (which one is not known)"


def _nodes(group: list[dict[str, Any]]) -> str:
    nodes = sorted({info["node"] for info in group})
    return ", ".join(nodes) if len(nodes) <= _MAX_NODES_NAMED else counted(len(nodes), "node")


def _gaps(record: dict[str, Any]) -> Iterator[str]:
    quality, run = record["quality"], record["run"]
    present = len(quality["ranks"])
    if quality["missing"]:
        yield (
            f"Gap: {ranks(quality['missing'])} of {run['world_size']} left no readable recording. "
            "Nothing on this page speaks of them; they may be healthy or not."
        )
    else:
        yield f"All {counted(run['world_size'], 'rank')} of the job left a recording."
    if quality["left_out"]:
        yield (
            f"Gap: {ranks(quality['left_out'])} recorded too few steps to be compared with the "
            "others."
        )
    for note in busy_note(record):
        yield f"Gap: {note}."
    compared = 0 if quality["collectives"] == "none" else len(record["phases"]["ranks"])
    if compared < present and run["world_size"] > 1:
        yield f"{compared} of {counted(present, 'recorded rank')} are compared in the verdict."
