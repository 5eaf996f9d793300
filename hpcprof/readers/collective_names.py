"""Which collective a name means, for the names of Horovod, MPI and NCCL. Knows no file format."""

from __future__ import annotations

import re

from hpcprof.trace.columns import OPS

# Horovod's NVTX names (HorovodAllreduce, HorovodGroupedAllreduce), MPI calls (MPI_Iallreduce,
# MPI_Reduce_scatter_block, MPI_Bcast), NCCL kernels of all generations (ncclDevKernel_AllReduce_…,
# ncclKernel_AllReduce_…, ncclAllReduceRingLLKernel_…)
_PREFIX_RE = re.compile(r"\A(?:horovod(?:grouped)?|mpi_i?|nccl(?:dev)?(?:kernel_)?)")
# longest first: "reduce" is the beginning of "reducescatter"
_BY_LENGTH = sorted(OPS, key=len, reverse=True)


def collective_op(name: str) -> str | None:
    """The ``op`` of a collective, or None when the name is none of them.

    A name without one of the prefixes is no collective, whatever it contains.
    """
    text = name.lower()
    match = _PREFIX_RE.match(text)
    if not match:
        return None
    rest = text[match.end() :].replace("_", "").replace("bcast", "broadcast")
    return next((op for op in _BY_LENGTH if rest.startswith(op)), None)


def is_nccl_kernel(name: str) -> bool:
    """Whether a GPU kernel belongs to NCCL; some do several collectives and have no ``op``."""
    return name.lower().startswith("nccl")
