"""Does Horovod see the ranks that Slurm started?

Where the MPI under Horovod does not fit srun's, every rank believes to be alone: the training
looks healthy and fast, and each rank trains a model of its own (horovod issues 870, 1646, 2588).
"""

from __future__ import annotations

import os
import sys

from hpcprof.annotate.notes import leave_message, say
from hpcprof.artifacts import rank_env, rank_state

_MODULES = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")


def look_at_horovod() -> None:
    """Leave Horovod's size for the manifest, and warn when it is not the job step's.

    For after the first step, when an initialised Horovod is the one that the training uses.
    Imports nothing. Never raises.
    """
    loaded = [sys.modules[name] for name in _MODULES if name in sys.modules]
    if not loaded:
        return
    try:
        size = int(loaded[0].size())
    except Exception:  # not initialised, or a module that is no Horovod: nothing is known
        return
    leave_message(rank_state.HOROVOD_SIZE, str(size))
    expected = os.environ.get(rank_env.WORLD_SIZE, "")
    if expected.isdigit() and int(expected) != size:
        alone = "the ranks train alone, each on its own model. " if size == 1 else ""
        say(
            f"Horovod sees {size} rank(s), the job step has {expected}: {alone}"
            "MPI and srun do not fit together; try srun --mpi=pmix"
        )
