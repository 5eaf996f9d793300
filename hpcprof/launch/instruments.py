"""What the training itself records beside its spans, as variables for annotate.

Hooks, names of operations, tf.profiler, and our NVTX recorder. Starts nothing; settings that cannot
be obeyed are warnings, and never cost the training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, NamedTuple

from hpcprof.artifacts import nvtx_format, rank_env
from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import UsageError

NSYS_RECORDS = "nsys records this rank"


class Instruments(NamedTuple):
    """Variables for the application, and what could not be obeyed."""

    variables: Mapping[str, str]
    warnings: list[str]


def wanted(
    settings: Mapping[str, Any], identity: RankEnv, environ: Mapping[str, str]
) -> Instruments:
    """What the settings ask of this rank. Raises nothing for a value that is no good."""
    warnings: list[str] = []
    variables: dict[str, str] = {}
    if not settings["hooks"]:
        variables[rank_env.HOOKS] = "0"
    _add_steps(variables, rank_env.OP_STEPS, settings, "op_steps", warnings)
    if _is_tf_profiled(settings, identity, warnings):
        _add_steps(variables, rank_env.TF_STEPS, settings, "tf_steps", warnings)
    if rank_env.TF_STEPS in variables:
        variables[rank_env.TF_DEVICE] = "1"  # nsys is kept off this rank where it would trace CUDA
        if _has_gpu(environ):
            # TensorFlow gives the names of its operations to NVTX, where somebody listens in its
            # domain, and else to CUPTI: tf.profiler's kernels would have none
            variables[rank_env.NVTX_WITHOUT] = nvtx_format.TENSORFLOW_DOMAIN
            variables.pop(rank_env.OP_STEPS, None)
    return Instruments(variables, warnings)


def is_tf_profiled(environ: Mapping[str, str]) -> bool:
    """Whether tf.profiler records steps of the application with this environment."""
    return rank_env.TF_STEPS in environ


def with_recorder(
    environ: Mapping[str, str], package: Path | None, wish: object
) -> tuple[dict[str, str], dict[str, Any]]:
    """``environ`` of an application without nsys, and what the manifest says of the recorder.

    ``package`` is the folder by which the application imports hpcprof, ``wish`` the setting.
    """
    if wish == "none":
        return dict(environ), not_used("it is not wanted")
    if environ.get(nvtx_format.INJECTION):
        other = environ[nvtx_format.INJECTION]
        return dict(environ), not_used(f"{nvtx_format.INJECTION} is {other} already")
    if package is None:
        return dict(environ), not_used("the training cannot import hpcprof")
    library = package.joinpath("hpcprof", "annotate", "native", nvtx_format.LIBRARY)
    if not library.exists():
        return dict(environ), not_used("it was not compiled when hpcprof was installed")
    return {**environ, nvtx_format.INJECTION: str(library)}, {"name": "nvtx"}


def not_used(reason: str) -> dict[str, Any]:
    """``recorder`` of a manifest whose rank has none."""
    return {"name": "none", "reason": reason}


def _add_steps(
    variables: dict[str, str],
    name: str,
    settings: Mapping[str, Any],
    key: str,
    warnings: list[str],
) -> None:
    from hpcprof.artifacts.step_range import StepRange

    text = settings[key]
    if not text or text == "none":
        return
    try:
        variables[name] = str(StepRange.from_text(str(text)))
    except ValueError as error:
        warnings.append(f"{key}: {error}; it is left out")


def _is_tf_profiled(settings: Mapping[str, Any], identity: RankEnv, warnings: list[str]) -> bool:
    selector = settings["tf_ranks"]
    if not selector:
        return False
    from hpcprof.launch.selection import is_selected

    try:
        return is_selected(str(selector), identity, "tf_ranks")
    except UsageError as error:
        warnings.append(str(error))
        return False


def _has_gpu(environ: Mapping[str, str]) -> bool:
    # imported late: few ranks run tf.profiler
    from hpcprof.launch import nsys

    return nsys.has_usable_gpu(environ)
