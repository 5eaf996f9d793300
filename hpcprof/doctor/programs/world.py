"""How many ranks see each other over MPI? By Horovod where it is installed, else by mpi4py.

Run by the training's Python as one of several tasks of srun.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "HPCPROF-DOCTOR-ANSWER "


def main() -> None:
    """Answer {"by"} when all is imported, and {"by", "rank", "size"} when MPI has started."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # MPI is asked for, not the GPU
    if sys.argv[1] == "horovod":
        import horovod.tensorflow as hvd

        answer({"by": "hvd"})
        hvd.init()
        answer({"by": "hvd", "rank": hvd.rank(), "size": hvd.size()})
        hvd.shutdown()
    else:
        answer({"by": "mpi4py"})
        from mpi4py import MPI  # which starts MPI

        answer({"by": "mpi4py", "rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size})
        MPI.Finalize()


def answer(value: dict[str, Any]) -> None:
    """Print one answer."""
    sys.stdout.write("\n" + MARK + json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
