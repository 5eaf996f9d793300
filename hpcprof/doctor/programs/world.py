"""How many ranks see each other over MPI? By Horovod where it is installed, else by mpi4py.

Run by the training's Python as one of several tasks of srun.
"""

from __future__ import annotations

import json
import os
import sys

MARK = "HPCPROF-DOCTOR-ANSWER "


def main() -> None:
    """Answer {"by", "rank", "size"}."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # MPI is asked for, not the GPU
    if sys.argv[1] == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        found = {"by": "hvd", "rank": hvd.rank(), "size": hvd.size()}
        close = hvd.shutdown
    else:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        found = {"by": "mpi4py", "rank": world.rank, "size": world.size}
        close = MPI.Finalize
    sys.stdout.write("\n" + MARK + json.dumps(found) + "\n")
    sys.stdout.flush()
    close()


if __name__ == "__main__":
    main()
