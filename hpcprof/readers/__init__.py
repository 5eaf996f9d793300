"""What a run left on disk, as traces on the clock of the node: one module per file format.

Does not align nodes and does not judge what the numbers mean.
"""

from hpcprof.readers.manifest_reader import read_job
from hpcprof.readers.nsys_tools import NsysTools, find_tools
from hpcprof.readers.rank import NodeAnchors, read_anchors, read_rank

__all__ = ["NodeAnchors", "NsysTools", "find_tools", "read_anchors", "read_job", "read_rank"]
