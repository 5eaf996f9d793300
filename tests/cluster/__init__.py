"""A whole Slurm cluster of virtual nodes on one Linux machine, for tests.

`python -m tests.cluster up` starts it, `tests.cluster.fixture` gives it to pytest. See
`docs/test-cluster.md`. Standard library only; knows nothing of the hpcprof package.
"""
