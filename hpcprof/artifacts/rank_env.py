"""Who this process is: one table from our words to the variables of Slurm, PMIx, PMI and Open MPI.

The only module that reads the identity of a rank out of an environment.
"""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple

from hpcprof.errors import EnvironmentLacksError

# what the launcher tells the training process; annotate is inert without RANK_FOLDER
RANK_FOLDER = "HPCPROF_RANK_FOLDER"
RANK = "HPCPROF_RANK"
STATE_FOLDER = "HPCPROF_STATE_FOLDER"  # node-local: start token, exit code, annotate's last words
RUN_DIR = "HPCPROF_RUN_DIR"  # set by the job script, read by launch
NVTX = "HPCPROF_NVTX"  # "1" when nsys listens to NVTX ranges
NVTX_WITHOUT = "HPCPROF_NVTX_WITHOUT"  # a domain that our own recorder must not listen to
# steps to record and how recording is switched on: "20-59,cuda" (cuProfilerStart) or "20-59,host"
# (a message to the launcher, see rank_state)
WINDOW = "HPCPROF_WINDOW"
HOOKS = "HPCPROF_HOOKS"  # "0": TensorFlow, Keras and Horovod are left as they are
OP_STEPS = "HPCPROF_OP_STEPS"  # "10-29": steps in which TensorFlow names each of its operations
TF_STEPS = "HPCPROF_TF_STEPS"  # "30-39": steps that tf.profiler records; absent: none
TF_DEVICE = "HPCPROF_TF_DEVICE"  # "1" when tf.profiler may trace the GPU (nobody else does)
HANG_AFTER = "HPCPROF_HANG_AFTER_S"  # seconds without a step; absent or 0: no watchdog
WORLD_SIZE = "HPCPROF_WORLD_SIZE"  # ranks of the job step, absent when unknown
# id of the process that trains: set by itself, so that the processes it starts stay silent
OWNER = "HPCPROF_OWNER_PID"

# set by hpcprof launch --ranks N for the ranks it starts; before Slurm's, because it may itself run
# inside an allocation, where every rank would be Slurm's task 0. Not passed on to the application
LOCAL_RANK = "HPCPROF_LAUNCH_RANK"
LOCAL_WORLD_SIZE = "HPCPROF_LAUNCH_WORLD_SIZE"
LOCAL_VARIABLES = (LOCAL_RANK, LOCAL_WORLD_SIZE)

# each concept: the variables that may hold it, most trustworthy first
_VARIABLES = {
    "rank": (LOCAL_RANK, "SLURM_PROCID", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"),
    "local_rank": (LOCAL_RANK, "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "world_size": (
        LOCAL_WORLD_SIZE,
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_SIZE",
    ),
}


class RankEnv(NamedTuple):
    """Identity of one training process. ``job_id`` and ``slurm_step`` are "" outside Slurm."""

    rank: int
    local_rank: int
    world_size: int
    node: str
    job_id: str
    slurm_step: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> RankEnv:
        """Read the identity. Raises EnvironmentLacksError when the rank is unknown or impossible.

        There is no default rank: two processes that both believe to be rank 0 would overwrite
        each other's files.
        """
        rank = _number(environ, "rank")
        if rank is None:
            wanted = ", ".join(_VARIABLES["rank"])
            raise EnvironmentLacksError(
                f"no rank in the environment (none of {wanted} is set). "
                "Start the training with srun, or with hpcprof launch --ranks N."
            )
        world_size = _number(environ, "world_size")
        if world_size is None:
            world_size = rank + 1
        if not 0 <= rank < world_size:
            raise EnvironmentLacksError(
                f"rank {rank} does not fit a job of {world_size} ranks. "
                "Was this started by an srun inside another srun?"
            )
        local_rank = _number(environ, "local_rank")
        return cls(
            rank=rank,
            local_rank=0 if local_rank is None else local_rank,
            world_size=world_size,
            node=environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0],
            job_id=environ.get("SLURM_JOB_ID", ""),
            slurm_step=environ.get("SLURM_STEP_ID", ""),
        )


def _number(environ: Mapping[str, str], concept: str) -> int | None:
    for variable in _VARIABLES[concept]:
        text = environ.get(variable, "")
        if text.isdigit():
            return int(text)
    return None
