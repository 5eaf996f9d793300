"""Puts the clocks of the nodes on one job clock and says how well that is known.

Knows that clocks differ; does not know why a rank is slow.
"""

from hpcprof.align.node_clock import NodeClock, apply
from hpcprof.align.wall_clock import fit_nodes, job_start

__all__ = ["NodeClock", "apply", "fit_nodes", "job_start"]
