"""Draws a diagnosis as a table: 80 columns and no colour when piped."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcprof import units
from hpcprof.doctor.diagnosis import Diagnosis, Line
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, WARN

_STYLES = {OK: "green", WARN: "bold yellow", FAIL: "bold red", NOT_CHECKED: "bold"}
_CHECK_WIDTH, _STATE_WIDTH = 16, 11


def render_text(diagnosis: Diagnosis, width: int = 80) -> str:
    """The table as plain text of at most ``width`` columns, without any escape sequence."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    text = _printed(diagnosis, console)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def render_terminal(diagnosis: Diagnosis) -> str:
    """The table as wide as this terminal and in colour."""
    return _printed(diagnosis, Console(highlight=False))


def _printed(diagnosis: Diagnosis, console: Console) -> str:
    with console.capture() as capture:
        console.print(_renderable(diagnosis))
    return capture.get()


def _renderable(diagnosis: Diagnosis) -> RenderableType:
    here = [line for line in diagnosis.lines if not line.nodes]
    there = [line for line in diagnosis.lines if line.nodes]
    parts: list[RenderableType] = [Text(_headline(diagnosis), style="bold"), Text("")]
    parts += [Text(f"this machine ({diagnosis.machine})", style="bold"), _table(here, ())]
    if there:
        count = units.counted(len(diagnosis.nodes), "compute node")
        title = f"{count} ({', '.join(diagnosis.nodes)})"
        parts += [Text(""), Text(title, style="bold"), _table(there, diagnosis.nodes)]
    if not diagnosis.asked_nodes:
        parts += [
            Text(""),
            Text("Compute nodes were not asked and may differ: hpcprof doctor --srun"),
        ]
    return Group(*parts)


def _headline(diagnosis: Diagnosis) -> str:
    counted = ", ".join(f"{count} {state}" for state, count in diagnosis.counts.items() if count)
    return f"hpcprof doctor: {counted}"


def _table(lines: list[Line], all_nodes: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(width=_CHECK_WIDTH, overflow="fold")
    table.add_column(width=_STATE_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        row = line.row
        # where all nodes say the same, their names would only be noise
        names = "" if line.nodes == all_nodes else f"{', '.join(line.nodes)}: "
        text = Text(names + row.found)
        if row.advice:
            text.append(f"\n→ {row.advice}", style="" if row.state == NOT_CHECKED else "bold")
        table.add_row(Text(row.check), Text(row.state, style=_STYLES[row.state]), text)
    return table
