"""The environment of the application: its own, and what annotate needs to find the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping

from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths

# what an outer launcher may have left; a rank that is not recorded must not write into another's
_OURS = (
    rank_env.RANK_FOLDER,
    rank_env.RANK,
    rank_env.STATE_FOLDER,
    rank_env.NVTX,
    *rank_env.LOCAL_VARIABLES,
)


def unrecorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an application that hpcprof leaves alone."""
    return {name: value for name, value in environ.items() if name not in _OURS}


def recorded(
    environ: Mapping[str, str], paths: ArtifactPaths, rank: int, state: Path | None
) -> dict[str, str]:
    """The environment of a recorded application; ``state`` None leaves annotate unreachable."""
    result = unrecorded(environ)
    result[rank_env.RANK_FOLDER] = str(paths.rank_folder(rank).absolute())
    result[rank_env.RANK] = str(rank)
    if state is not None:
        result[rank_env.STATE_FOLDER] = str(state)
    return result


def with_package(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """``environ`` with ``folder`` first in PYTHONPATH."""
    before = environ.get("PYTHONPATH")
    path = str(folder) + (os.pathsep + before if before else "")
    return {**environ, "PYTHONPATH": path}


def with_listener(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` of an application whose NVTX ranges are recorded."""
    return {**environ, rank_env.NVTX: "1"}
