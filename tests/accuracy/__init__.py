"""Measures how often the verdict is right, with faults of known truth on the test cluster.

``python -m tests.accuracy run`` makes the trials, ``table`` writes docs/accuracy-real.md.
"""
