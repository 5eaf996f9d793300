"""Puts the clocks of the nodes on one job clock and says how well that is known.

Knows that clocks differ; does not know why a rank is slow.
"""

from hpcprof.align.causality import violations
from hpcprof.align.fit import fit_nodes, job_start
from hpcprof.align.node_clock import NodeClock, apply, pair_bound_ns

__all__ = ["NodeClock", "apply", "fit_nodes", "job_start", "pair_bound_ns", "violations"]
