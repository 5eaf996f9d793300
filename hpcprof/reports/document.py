"""``Document``: a report as data. Every output renders the same Document, so none can disagree.

Made from the record in findings.json alone, so that a report can be printed again anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcprof.reports.agent_notes import note_sentences
from hpcprof.reports.memory_tables import memory_facts, memory_not_measured, memory_tables
from hpcprof.reports.operation_tables import (
    not_told_apart,
    operation_facts,
    operation_tables,
    recorded_of,
)
from hpcprof.reports.profiler_notes import profiler_notes
from hpcprof.reports.quality_tables import clock_table, order_note, quality_table
from hpcprof.reports.table import Table
from hpcprof.units import (
    counted,
    duration,
    nbytes,
    percent,
    percent_interval,
    ranks,
)

# parts of the step in the order of a step; a column is shown when some rank spent 0.5 % in it
_PARTS = (
    *("input", "h2d", "forward", "backward", "compute", "wait", "transfer"),
    *("optimizer", "checkpoint", "eval", "host"),
)
_SHOWN_FRAC = 0.005
_MAX_TABLE_ROWS = 16
_SHORT_NS = 30e6  # of a step


@dataclass(frozen=True)
class Entry:
    """One finding: its level and sentence, and labelled lines below it."""

    number: int
    level: str
    message: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Document:
    """A whole report: headline, labelled facts, findings, labelled remarks, tables.

    ``appendix`` (inside the step, memory, clocks, what was recorded) and ``order_note`` (what a
    timeline can show of order between nodes) are for pages; a screen has no room for them.
    """

    headline: str
    facts: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]
    remarks: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    appendix: tuple[Table, ...]
    order_note: str


def build_document(record: dict[str, Any]) -> Document:
    """The report of a run from its findings record (findings_record.py)."""
    judged = [f for f in record["findings"] if f["status"] == "ok"]
    unjudged = [f for f in record["findings"] if f["status"] != "ok"]
    remarks = [("healthy", sentence) for sentence in record["healthy"]]
    remarks += [_remark(finding) for finding in unjudged]
    remarks += [("not measured", sentence) for sentence in not_told_apart(record)]
    remarks += [("not measured", sentence) for sentence in memory_not_measured(record)]
    remarks += [("not measured", sentence) for sentence in _agent_notes(record)]
    return Document(
        headline=_headline(record),
        facts=tuple(_facts(record, judged)),
        entries=tuple(_entry(number, finding) for number, finding in enumerate(judged, start=1)),
        remarks=tuple(remarks),
        tables=tuple(_tables(record)),
        appendix=tuple(_appendix(record)),
        order_note=order_note(record),
    )


def _appendix(record: dict[str, Any]) -> Iterator[Table]:
    yield from operation_tables(record)
    yield from memory_tables(record)
    yield clock_table(record)
    yield quality_table(record)


def _headline(record: dict[str, Any]) -> str:
    run = record["run"]
    parts = [run["name"]]
    if run["job_id"]:
        parts.append(f"job {run['job_id']}")
    nodes = len(run["nodes"])
    if nodes:
        parts.append(f"{counted(nodes, 'node')}, {counted(run['world_size'], 'rank')}")
    compared = "" if _is_alone(record) else " compared"
    parts += [run["strategy"], f"{run['steps_used']} steps{compared}"]
    return " · ".join(part for part in parts if part)


def _is_alone(record: dict[str, Any]) -> bool:
    """Whether steps are told of each rank for itself, since no collectives were recorded."""
    return bool(record["quality"]["collectives"] == "none" and record["phases"]["ranks"])


def _facts(record: dict[str, Any], judged: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    run = record["run"]
    if run["step_ns"] is None:
        left = (record["quality"].get("busy_steps") or {}).get("left")
        which = "too few steps" if left else "no step"
        yield "step", f"unknown: {which} could be compared across ranks"
        yield from operation_facts(record)
        yield from memory_facts(record)
        yield from _profiler(record)
        return
    text = f"{duration(run['step_ns'])} (median; {run['warm_up_steps']} warm-up steps left out)"
    if run.get("steps_each", 1) > 1:  # records of earlier versions do not have it
        text += f"; each is {run['steps_each']} steps of the training: of one call, or one update"
    if _is_alone(record) and run["world_size"] > 1:
        text += "; each rank for itself: no collective was recorded to compare them by"
    late = [f for f in judged if f["rule"] == "rank-arrives-late" and f["level"] != "info"]
    if late:
        saved = sum(f["impact_frac"] for f in late)
        low, high = (sum(f["ci"][i] for f in late) for i in (0, 1))
        faster = run["step_ns"] * (1 - saved)
        text += (
            f"; about {duration(faster)} without the waits of "
            f"{'finding 1' if len(late) == 1 else f'{len(late)} findings'} "
            f"(−{percent(saved)} {percent_interval(low, high)})"
        )
    yield "step", text
    yield from operation_facts(record)
    if run["payload_bytes"]:
        yield "allreduce", f"{nbytes(run['payload_bytes'])} per step and rank{_transfer(record)}"
    if record.get("horovod"):
        yield "horovod", _horovod(record["horovod"])
    yield from memory_facts(record)
    yield from _profiler(record)


def _profiler(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for number, note in enumerate(profiler_notes(record)):
        yield "" if number else "profiler", note


def _horovod(seen: dict[str, Any]) -> str:
    if not seen["allreduces"]:
        return "its timeline holds no allreduce that ended"
    return (
        f"{duration(seen['negotiate_ns'])} of negotiation (waiting for the last rank) and "
        f"{duration(seen['transfer_ns'])} of transfer per allreduce, as rank 0's timeline saw "
        f"{seen['allreduces']} of them"
    )


def _transfer(record: dict[str, Any]) -> str:
    """What of the step the moving of the gradients takes, when that is known."""
    link = record.get("interconnect") or {}
    if link.get("transfer_ns") is None or link.get("transfer_frac") is None:
        return ""
    share = percent(link["transfer_frac"])
    text = f"; transfer {duration(link['transfer_ns'])} ({share} of the step)"
    if link["busbw_gb_s"]:
        text += f", busbw {link['busbw_gb_s']:.2g} GB/s"
    return text


def _entry(number: int, finding: dict[str, Any]) -> Entry:
    lines = []
    if finding["impact_frac"] is not None:
        limit = "at most " if finding.get("impact_is_limit") else ""
        cost = f"{limit}{percent(finding['impact_frac'])} of every step"
        if finding["ci"]:
            cost += f" {percent_interval(*finding['ci'])} (95 % interval)"
        lines.append(("costs", cost))
    if finding["evidence"]:
        lines.append(("why", "; ".join(finding["evidence"])))
    if finding["advice"]:
        lines.append(("do", finding["advice"]))
    return Entry(number, finding["level"], finding["message"], tuple(lines))


def _remark(finding: dict[str, Any]) -> tuple[str, str]:
    label = {"not_collected": "not measured", "insufficient": "cannot say"}
    text = finding["message"]
    if finding["evidence"]:
        text += f" ({'; '.join(finding['evidence'])})"
    if finding["advice"]:
        text = f"{text.rstrip('.')}. {finding['advice'][0].upper()}{finding['advice'][1:]}"
    return label.get(finding["status"], "unresolved"), text


def _agent_notes(record: dict[str, Any]) -> list[str]:
    notes = record["quality"].get("agent_notes", [])  # records of earlier versions have none
    return note_sentences((note["nodes"], note["text"]) for note in notes)


def _tables(record: dict[str, Any]) -> Iterator[Table]:
    phases, step_ns = record["phases"], record["run"]["step_ns"]
    if not phases["ranks"] or not step_ns:
        return
    medians = phases["median_ns"]
    # records of earlier versions do not have every part
    shown = [part for part in _PARTS if max(medians.get(part, (0,))) >= _SHOWN_FRAC * step_ns]
    nodes = {info["rank"]: info for info in record["quality"]["ranks"]}
    order = sorted(range(len(phases["ranks"])), key=lambda i: -(phases["lateness_ns"][i] or 0))
    # short steps need decimals
    digits = 0 if step_ns >= _SHORT_NS else 1
    rows = []
    for i in sorted(order[:_MAX_TABLE_ROWS], key=lambda i: phases["ranks"][i]):
        rank = phases["ranks"][i]
        late = phases["lateness_ns"][i]
        cells = [f"{medians[part][i] / 1e6:.{digits}f}" for part in shown]
        if not _is_alone(record):
            cells.append("" if late is None else f"{late / 1e6:+.{digits}f}")
        recorded = recorded_of(record, nodes[rank])
        rows.append((str(rank), nodes[rank]["node"], recorded, *cells))
    heads = ("rank", "node", "recorded", *shown, *(() if _is_alone(record) else ("late",)))
    note = _note_on_parts(record, len(rows), len(order))
    yield Table("where a step goes, median ms", heads, tuple(rows), note)


def _note_on_parts(record: dict[str, Any], shown: int, known: int) -> str:
    note = "wait: for the last rank to arrive. late: against the ranks that nobody waits for."
    which = "latest"
    if _is_alone(record):
        which = "first"
        note = "Each rank for itself; waiting for others, where it does, is in these parts."
        if record["run"]["world_size"] == 1:
            note = ""
    if known > shown:
        note += f" The {which} {shown} ranks are shown, {known - shown} are not."
    if record["quality"]["left_out"]:
        note += f" Too few steps to compare: {ranks(record['quality']['left_out'])}."
    unseen = sorted({*record["quality"]["left_out"], *record["quality"]["missing"]})
    if unseen and not _is_alone(record):
        note += f" Waiting for {ranks(unseen)} cannot be told from transfer."
    return note
