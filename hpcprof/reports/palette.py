"""Colours of the page. A phase has one colour everywhere; all can be told apart when colour-blind.

Qualitative: Okabe and Ito, "Color Universal Design" (2008). Diverging: ColorBrewer's RdBu.
"""

from __future__ import annotations

from hpcprof.trace import columns as c

PHASE_COLOURS = {
    c.INPUT: "#e69f00",
    c.H2D: "#56b4e9",
    c.FORWARD: "#0072b2",
    c.BACKWARD: "#009e73",
    c.ALLREDUCE: "#cc79a7",
    c.OPTIMIZER: "#f0e442",
    c.CHECKPOINT: "#d55e00",
    c.EVAL: "#000000",
    c.COMPUTE_PHASE: "#332288",  # Tol's indigo: the eight of Okabe and Ito are taken
    c.OTHER: "#b0b0b0",
}
# parts of the step in the tables: both are spent inside the allreduce
PART_COLOURS = {**PHASE_COLOURS, "wait": "#e8c3d7", "transfer": PHASE_COLOURS[c.ALLREDUCE]}

# early (blue) over as the others (white) to late (red)
DIVERGING = (
    *("#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#ffffff"),
    *("#fddbc7", "#f4a582", "#d6604d", "#b2182b"),
)
NO_DATA = "#c8c8c8"


def phase_colour(phase: str) -> str:
    """The colour of a phase; that of ``other`` for one that is not known here."""
    return PHASE_COLOURS.get(phase, PHASE_COLOURS[c.OTHER])
