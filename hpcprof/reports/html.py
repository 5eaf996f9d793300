"""Renders a Document as one self-contained page that needs no network.

The words are the Document's. Without Bokeh or without the record of the figures the page says that
it has none, and how to get them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hpcprof.errors import InputError
from hpcprof.reports.captions import (
    accused_caption,
    lateness_caption,
    timeline_caption,
    timeline_title,
)
from hpcprof.reports.document import Document
from hpcprof.reports.figures import Figures, read_figures
from hpcprof.reports.palette import PART_COLOURS, PHASE_COLOURS

WITHOUT_RECORD = (
    "This page has no figures: what they show was not recorded in the run folder "
    "(store/figures.json). Run hpcprof collect again."
)
WITHOUT_BOKEH = (
    "This page has no figures: they need the Python package bokeh. Install it where hpcprof is "
    "installed (pip install 'hpcprof[html]'), then run hpcprof report RUN_DIR --format html."
)
WITHOUT_STEPS = (
    "This page has no figures: no step could be compared across ranks (see what was recorded)."
)


@dataclass(frozen=True)
class Picture:
    """One figure: the element it is drawn in, Bokeh's JSON for it, and sentences below it."""

    target: str
    title: str
    json: Markup
    caption: tuple[str, ...]
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Gallery:
    """The figures and the JavaScript that draws them; or none, and ``reason`` says why."""

    pictures: tuple[Picture, ...] = ()
    library: str = ""
    reason: str = ""


def render_html(document: Document, record: dict[str, Any], figures: dict[str, Any] | None) -> str:
    """The page. ``record``: findings.json; ``figures``: store/figures.json, None when missing."""
    template = _environment().get_template("report.html.j2")
    return template.render(
        document=document,
        summary=_summary(document),
        remarks=_columns(document.remarks),
        gallery=_gallery(document, record, figures),
        colours=PART_COLOURS,
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _summary(document: Document) -> str:
    """What to say in place of findings; "" when there are some."""
    labels = {label for label, _ in document.remarks}
    if document.entries:
        return ""
    if "healthy" not in labels:
        return "No finding, and nothing could be found healthy either: too little was measured."
    if "cannot say" in labels:
        return "No finding in what could be judged; part of the verdict could not be made (below)."
    return "Nothing slow was found in what was measured."


def _columns(remarks: tuple[tuple[str, str], ...]) -> tuple[dict[str, list[str]], ...]:
    """Remarks under their label: what is healthy on the left, all that is not known on the right.

    The two questions that are always asked are always answered, also by "nothing".
    """
    known: dict[str, list[str]] = {"healthy": []}
    unknown: dict[str, list[str]] = {"not measured": []}
    for label, text in remarks:
        (known if label in known else unknown).setdefault(label, []).append(text)
    return known, unknown


def _gallery(document: Document, record: dict[str, Any], figures: dict[str, Any] | None) -> Gallery:
    if figures is None:
        return Gallery(reason=WITHOUT_RECORD)
    try:
        drawable = read_figures(figures)
    except InputError as error:
        return Gallery(reason=f"This page has no figures: {error}.")
    if not drawable.timeline.steps or not drawable.lateness.ranks:
        return Gallery(reason=WITHOUT_STEPS)
    try:
        return _drawn(drawable, document.order_note, _accused(record))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "bokeh":
            raise
        return Gallery(reason=WITHOUT_BOKEH)


def _drawn(figures: Figures, order_note: str, accused: set[int]) -> Gallery:
    from hpcprof.reports import plots  # an extra, and slow to import

    timeline, lateness = figures.timeline, figures.lateness
    shown = {bar.phase for bar in timeline.bars}
    first = Picture(
        target="timeline",
        title=timeline_title(timeline),
        json=Markup(plots.timeline_plot(timeline, accused, "timeline")),
        caption=(
            *timeline_caption(timeline, order_note),
            *accused_caption(timeline.ranks, accused),
        ),
        legend=(
            *((name, colour) for name, colour in PHASE_COLOURS.items() if name in shown),
            ("not marked", "#ffffff"),
        ),
    )
    second = Picture(
        target="lateness",
        title="How late each rank is in every step, ms",
        json=Markup(plots.lateness_plot(lateness, accused, "lateness")),
        caption=tuple(lateness_caption(lateness)),
    )
    # the only two texts of the page that are not escaped: both are made for a script element
    return Gallery((first, second), Markup(plots.library()))


def _accused(record: dict[str, Any]) -> set[int]:
    """Ranks that a finding about lateness names."""
    late = [f for f in record["findings"] if f["rule"] == "rank-arrives-late"]
    return {rank for finding in late if finding["status"] == "ok" for rank in finding["ranks"]}
