"""Looks whether a machine can run and record a training, before a queue has been waited for.

Checks ask; nothing here changes anything on the machine for longer than a check takes. Does not
know what is in a recording.
"""

from __future__ import annotations

# the order of the table
from hpcprof.doctor import (  # isort: skip
    this_hpcprof,
    slurm,
    output_folder,
    node,
    nsys,
    recorder,
    training,
    capture,
    gpu,
    mpi,
)
from hpcprof.doctor.registry import CHECKS

__all__ = ["CHECKS"]

_MODULES = (this_hpcprof, slurm, output_folder, node, nsys, recorder, training, capture, gpu, mpi)
