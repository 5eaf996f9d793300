"""Runs inside a job: starts the training on every rank, under nsys where it can.

Standard library only, Python >= 3.8. Whatever goes wrong here, the training runs and its own exit
code is returned.
"""
