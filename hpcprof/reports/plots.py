"""Draws the two figures with Bokeh, for zoom and hover. Importing it needs the extra ``html``.

A figure becomes the JSON that Bokeh's own JavaScript draws; the page puts both in. Names of nodes
and spans are plain text everywhere: Bokeh would set TeX, and load MathJax from the network for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    PlainText,
    Range1d,
)
from bokeh.palettes import interp_palette
from bokeh.plotting import figure
from bokeh.resources import Resources

from hpcprof.analyses.lateness_map import LatenessMap
from hpcprof.analyses.timeline import Bar, Timeline
from hpcprof.reports.palette import DIVERGING, NO_DATA, phase_colour
from hpcprof.units import duration, nbytes

MS = 1e6
_MAX_NODE_LETTERS = 20
_AROUND_PX = 90  # axis and toolbar
_HEADER_PX = 20  # room above the lanes for the numbers of the steps
_TOOLS = "xbox_zoom,xpan,xwheel_zoom,reset"


def library() -> str:
    """Bokeh's JavaScript, without its parts for widgets, tables, WebGL and TeX (1.3 MB)."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def timeline_plot(timeline: Timeline, accused: Collection[int], target: str) -> str:
    """The timeline as JSON for the element ``target``; ranks of ``accused`` are marked."""
    header = _HEADER_PX / _lane_px(len(timeline.ranks))
    plot = _plot(timeline.ranks, timeline.nodes, accused, header)
    plot.xaxis.axis_label = "ms since the first of these spans began, on the job's clock"
    drawn = plot.quad(
        *("left", "right", "top", "bottom"),
        source=ColumnDataSource(_bars(timeline)),
        fill_color="colour",
        line_color="white",
        line_width=0.5,
    )
    tips = [
        *(("", "@what"), ("", "@who"), ("step", "@step")),
        *(("start", "@left{0.000} ms"), ("duration", "@length"), ("bytes", "@bytes")),
    ]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips, point_policy="follow_mouse"))
    _mark_steps(plot, timeline.bars, -0.5 - header / 2)
    end = max((bar.start_ns + bar.duration_ns for bar in timeline.bars), default=0) / MS
    plot.x_range = Range1d(start=-0.005 * end, end=1.005 * end)
    return _json(plot, target)


def lateness_plot(lateness: LatenessMap, accused: Collection[int], target: str) -> str:
    """The map of lateness as JSON for the element ``target``."""
    plot = _plot(lateness.ranks, lateness.nodes, accused, header=0)
    plot.xaxis.axis_label = "step"
    cells = _cells(lateness)
    count, bins = cells["image"][0].shape
    width = lateness.steps_per_bin
    limit = lateness.limit_ns / MS
    mapper = LinearColorMapper(
        palette=interp_palette(DIVERGING, 255), low=-limit, high=limit, nan_color=NO_DATA
    )
    drawn = plot.image(
        image="image",
        source=ColumnDataSource(cells),
        # a bin is drawn around its steps: step 12 from 11.5 to 12.5
        x=lateness.first_step - 0.5,
        y=-0.5,
        dw=bins * width,
        dh=count,
        color_mapper=mapper,
    )
    steps = "@first" if width == 1 else "@first to @last"
    tips = [
        ("rank", "@rank"),
        ("step" if width == 1 else "steps", steps),
        ("late", "@image{+0.00} ms"),
    ]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    plot.add_layout(drawn.construct_color_bar(width=12, padding=6), "right")
    left = lateness.first_step - 0.5
    plot.x_range = Range1d(start=left, end=left + bins * width)
    return _json(plot, target)


def _bars(timeline: Timeline) -> dict[str, Any]:
    """Where each bar lies, its colour, and what is said when one points at it."""
    lane_of = {rank: lane for lane, rank in enumerate(timeline.ranks)}
    has_both = {bar.is_collective for bar in timeline.bars} == {True, False}
    # long ones first, so that a short span inside a long one is seen
    bars = sorted(timeline.bars, key=lambda bar: -bar.duration_ns)
    node_of = dict(zip(timeline.ranks, timeline.nodes, strict=True))
    return {
        "left": [bar.start_ns / MS for bar in bars],
        "right": [(bar.start_ns + bar.duration_ns) / MS for bar in bars],
        "top": [lane_of[bar.rank] + _edges(bar, has_both)[0] for bar in bars],
        "bottom": [lane_of[bar.rank] + _edges(bar, has_both)[1] for bar in bars],
        "colour": [phase_colour(bar.phase) for bar in bars],
        "what": [_what(bar) for bar in bars],
        "who": [f"rank {bar.rank} on {node_of[bar.rank]}" for bar in bars],
        "step": [bar.step for bar in bars],
        "length": [duration(bar.duration_ns) for bar in bars],
        "bytes": ["–" if bar.bytes is None else nbytes(bar.bytes) for bar in bars],
    }


def _cells(lateness: LatenessMap) -> dict[str, Any]:
    """The image, lateness in ms, and whose and which steps each cell is."""
    values = np.asarray(lateness.lateness_ns, dtype=np.float64) / MS
    width = lateness.steps_per_bin
    first = lateness.first_step + width * np.arange(values.shape[1], dtype=np.int32)
    last = np.minimum(first + width - 1, lateness.last_step).astype(np.int32)
    ranks = np.asarray(lateness.ranks, dtype=np.int32)
    return {
        "image": [values.astype(np.float32)],
        "rank": [np.broadcast_to(ranks[:, None], values.shape).copy()],
        "first": [np.broadcast_to(first, values.shape).copy()],
        "last": [np.broadcast_to(last, values.shape).copy()],
    }


def _plot(
    ranks: Sequence[int], nodes: Sequence[str], accused: Collection[int], header: float
) -> Any:
    """An empty figure with one lane per rank, rank 0 on top, and a line between nodes."""
    plot = figure(
        sizing_mode="stretch_width",
        tools=_TOOLS,
        active_drag="xbox_zoom",
        toolbar_location="above",
        y_range=Range1d(start=len(ranks) - 0.5, end=-0.5 - header),
        min_border_right=12,
        height=math.ceil((len(ranks) + header) * _lane_px(len(ranks))) + _AROUND_PX,
    )
    plot.toolbar.logo = None  # a link to the network
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(ranks))))
    plot.yaxis.major_label_overrides = {
        lane: PlainText(text=_label(lane, ranks, nodes, accused)) for lane in range(len(ranks))
    }
    plot.yaxis.major_label_text_font_size = "12px" if len(ranks) <= 32 else "9px"
    plot.yaxis.major_tick_line_color = None
    plot.yaxis.axis_line_color = None
    plot.xaxis.major_label_text_font_size = "12px"
    plot.xaxis.axis_label_text_font_style = "normal"
    plot.grid.grid_line_color = None
    plot.outline_line_color = "#999999"
    borders = [lane + 0.5 for lane, (one, other) in enumerate(pairwise(nodes)) if one != other]
    plot.hspan(y=borders, line_color="#333333", level="overlay")
    return plot


def _label(lane: int, ranks: Sequence[int], nodes: Sequence[str], accused: Collection[int]) -> str:
    """ "node1   2" on the first lane of a node, else "2"; ranks that a finding names are marked."""
    node = nodes[lane]
    if len(node) > _MAX_NODE_LETTERS:
        node = f"{node[: _MAX_NODE_LETTERS - 1]}…"
    is_first = lane == 0 or nodes[lane - 1] != nodes[lane]
    mark = "▶ " if ranks[lane] in accused else ""
    return f"{node}   {mark}{ranks[lane]}" if is_first else f"{mark}{ranks[lane]}"


def _what(bar: Bar) -> str:
    return bar.phase if bar.name in ("", bar.phase) else f"{bar.name} ({bar.phase})"


def _edges(bar: Bar, has_both: bool) -> tuple[float, float]:  # noqa: FBT001 - of this module only
    """Upper and lower edge within the lane: collectives lie below the phases around them."""
    if not has_both:
        return -0.42, 0.42
    return (0.16, 0.42) if bar.is_collective else (-0.42, 0.12)


def _mark_steps(plot: Any, bars: Sequence[Bar], y: float) -> None:
    starts: dict[int, int] = {}
    for bar in bars:
        starts[bar.step] = min(bar.start_ns, starts.get(bar.step, bar.start_ns))
    begins = [start / MS for start in starts.values()]
    plot.vspan(x=begins, line_color="#333333", line_dash="dotted", level="overlay")
    plot.text(
        x=begins,
        y=[y] * len(begins),
        text=[f" step {step}" for step in starts],
        text_baseline="middle",
        text_font_size="12px",
        text_color="#333333",
    )


def _lane_px(lanes: int) -> float:
    return min(28.0, max(11.0, 480 / lanes))


def _json(plot: Any, target: str) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(json_item(plot, ID(target)))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
