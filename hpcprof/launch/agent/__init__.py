"""The node agent, one beside the training on every node: clocks, links, counters.

Standard library, Python >= 3.8; with mpi4py and psutil more is measured. Whatever goes wrong here
costs the agent's own records and never the job.
"""
