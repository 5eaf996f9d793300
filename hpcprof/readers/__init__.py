"""What a run left on disk, as traces on the clock of the node: one module per file format.

Does not align nodes and does not judge what the numbers mean.
"""
