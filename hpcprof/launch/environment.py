"""The environment of the application: its own, and what annotate needs to find the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping

from hpcprof.artifacts import nvtx_format, rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import EnvironmentLacksError

# what an outer launcher may have left; a rank that is not recorded must not write into another's
_OURS = (
    rank_env.RANK_FOLDER,
    rank_env.RANK,
    rank_env.STATE_FOLDER,
    rank_env.NVTX,
    rank_env.NVTX_WITHOUT,
    rank_env.WINDOW,
    rank_env.HOOKS,
    rank_env.OP_STEPS,
    rank_env.TF_STEPS,
    rank_env.TF_DEVICE,
    rank_env.HANG_AFTER,
    rank_env.WORLD_SIZE,
    rank_env.OWNER,
    *rank_env.LOCAL_VARIABLES,
)


def unrecorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an application that hpcprof leaves alone."""
    result = {name: value for name, value in environ.items() if name not in _OURS}
    if nvtx_format.is_recorder(result.get(nvtx_format.INJECTION, "")):
        del result[nvtx_format.INJECTION]
    return result


def recorded(
    environ: Mapping[str, str],
    paths: ArtifactPaths,
    identity: RankEnv,
    state: Path | None,
    hang_after_s: float,
) -> dict[str, str]:
    """The environment of a recorded application; ``state`` None leaves annotate unreachable.

    ``hang_after_s`` 0: no watchdog.
    """
    result = unrecorded(environ)
    result[rank_env.RANK_FOLDER] = str(paths.rank_folder(identity.rank).absolute())
    result[rank_env.RANK] = str(identity.rank)
    if _is_told_world_size(environ, identity):
        result[rank_env.WORLD_SIZE] = str(identity.world_size)
    if state is not None:
        result[rank_env.STATE_FOLDER] = str(state)
        if hang_after_s > 0:
            result[rank_env.HANG_AFTER] = f"{hang_after_s:g}"
    return result


def _is_told_world_size(environ: Mapping[str, str], identity: RankEnv) -> bool:
    """False when RankEnv had to make one up that fits the rank; Horovod's must not differ then."""
    beyond = {**environ, rank_env.LOCAL_RANK: str(identity.world_size)}
    try:
        RankEnv.from_environ(beyond)
    except EnvironmentLacksError:
        return True  # "rank 4 does not fit a job of 4 ranks"
    return False


def with_package(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """``environ`` with ``folder`` first in PYTHONPATH."""
    before = environ.get("PYTHONPATH")
    path = str(folder) + (os.pathsep + before if before else "")
    return {**environ, "PYTHONPATH": path}


def with_listener(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` of an application whose NVTX ranges are recorded."""
    return {**environ, rank_env.NVTX: "1"}


def with_window(environ: Mapping[str, str], window: str) -> dict[str, str]:
    """``environ`` of an application that says when recording begins and ends."""
    return {**environ, rank_env.WINDOW: window}
