"""Renders a Document for a terminal: one screen, colour only where it is wanted."""

from __future__ import annotations

import io
import re

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from hpcprof.reports.document import Document, Entry
from hpcprof.reports.table import Table

_LABEL_WIDTH = 12
# stands for the space between a number and its unit while lines are wrapped: rich breaks at a
# no-break space too, so a private character of the same width is used and replaced afterwards
_NO_BREAK = "\ue000"
_BEFORE_UNIT_RE = re.compile(r"(?<=\d) (?=(ns|µs|ms|s|min|h|%|B|kB|MB|GB)\b|%)")
_STYLES = {"critical": "bold red", "warn": "bold yellow", "info": "bold"}


def render_text(document: Document, width: int = 80) -> str:
    """The report as plain text of at most ``width`` columns, without any escape sequence."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    text = _printed(document, console)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def render_terminal(document: Document) -> str:
    """The report as wide as this terminal and in colour."""
    return _printed(document, Console(highlight=False))


def _printed(document: Document, console: Console) -> str:
    with console.capture() as capture:
        console.print(_renderable(document))
    return capture.get().replace(_NO_BREAK, " ")


def _renderable(document: Document) -> RenderableType:
    parts: list[RenderableType] = [Text(document.headline, style="bold")]
    parts.append(_labelled(document.facts))
    for entry in document.entries:
        parts += [Text(""), _entry(entry)]
    if document.remarks:
        parts += [Text(""), _labelled(_without_repeats(document.remarks))]
    for table in document.tables:
        parts += [Text(""), *_table(table)]
    return Group(*parts)


def _labelled(lines: tuple[tuple[str, str], ...]) -> RichTable:
    grid = _grid()
    for label, text in lines:
        grid.add_row(Text(label), _wrappable(text))
    return grid


def _entry(entry: Entry) -> RichTable:
    grid = _grid()
    style = _STYLES[entry.level]
    grid.add_row(
        Text(f"{entry.number} {entry.level}", style=style), _wrappable(entry.message, style)
    )
    for label, text in entry.lines:
        grid.add_row(Text(f"  {label}"), _wrappable(text))
    return grid


def _wrappable(text: str, style: str = "") -> Text:
    """Text that never breaks between a number and its unit."""
    return Text(_BEFORE_UNIT_RE.sub(_NO_BREAK, text), style)


def _grid() -> RichTable:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _without_repeats(lines: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The label of a line only where it differs from the one above."""
    labels = [label for label, _ in lines]
    return tuple(
        ("" if i and labels[i - 1] == label else label, f"· {text}")
        for i, (label, text) in enumerate(lines)
    )


def _table(table: Table) -> list[RenderableType]:
    rich_table = RichTable(box=None, padding=(0, 1, 0, 0), title_justify="left", pad_edge=False)
    for number, head in enumerate(table.heads):
        justify: JustifyMethod = "left" if number in table.text_columns else "right"
        rich_table.add_column(head, justify=justify, no_wrap=True)
    for row in table.rows:
        rich_table.add_row(*(Text(cell) for cell in row))
    return [Text(table.title, style="bold"), rich_table, _wrappable(table.note, "dim")]
