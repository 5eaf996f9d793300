"""What the checks look at: what a job would ask for, and the training's environment on this node.

``Request`` travels to the compute nodes as JSON, so it holds nothing but plain values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# the request of a node part; a variable and not an argument, as ``env`` is nobody else's business
VARIABLE = "HPCPROF_DOCTOR"
PYXIS = "pyxis"  # a container of the whole task, which we are not in


class Request(NamedTuple):
    """What spec and site ask for; without a spec what the command line and defaults say.

    ``strategy`` None: no spec, so nobody knows. ``command`` () likewise. ``container`` is the
    runtime that the training runs in, ``container_words`` what stands before the command then.
    ``python`` is a path given by hand. ``probe`` is a file that the asking machine has left in the
    output folder, "" for none, and ``token`` its content.
    """

    spec: str = ""
    site: str = ""
    strategy: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    profiler: str = "auto"
    nsys_path: str | None = None
    nsys_trace: Sequence[str] = ("cuda", "nvtx", "mpi")
    nsys_extra: Sequence[str] = ()
    modules: Sequence[str] = ()
    profile_modules: Sequence[str] = ()
    activations: Sequence[str] = ()
    env: Mapping[str, str] = {}
    workdir: str = ""
    command: Sequence[str] = ()
    container: str = ""
    container_words: Sequence[str] = ()
    python: str | None = None
    interpreter: str = ""
    output_dir: str = ""
    mpi: str | None = None
    kill_wait_s: int | None = None
    probe: str = ""
    token: str = ""
    srun: Sequence[str] = ()
    wait_s: int = 30

    def to_json(self) -> str:
        """The request for a node part."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Read what ``to_json`` wrote. Raises ValueError."""
        values: Any = json.loads(text)
        if not isinstance(values, dict) or set(values) != set(cls._fields):
            raise ValueError("the request is of another version of hpcprof")
        return cls(**values)


class Subject(NamedTuple):
    """The request, and what the training would find on this machine.

    ``environ`` is the training's environment. ``python`` is its interpreter, with what must stand
    before it to get into a container; () when there is none. ``assumed``: why the interpreter is
    only a guess or missing, "" when spec or user name it. ``on_node``: this is one task per node
    inside srun. ``ranks_until``: a time.monotonic(), until when tasks wait for each other.
    """

    request: Request
    environ: Mapping[str, str]
    python: Sequence[str] = ()
    assumed: str = ""
    on_node: bool = False
    ranks_until: float = 0.0

    @property
    def naming_advice(self) -> str:
        """What to do where the training's Python is not known."""
        if self.request.container == PYXIS:
            return "Put hpcprof into the image and run hpcprof doctor inside, under the same srun."
        return "Name the job spec, or the training's Python with --python PATH."


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Short name of this machine, as Slurm and the rank's manifest have it."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
