"""Which GPUs are here, and may a user trace them? Makes no CUDA context."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcprof.doctor import command, programs
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Subject

_SECONDS = 12.0
_DEV = Path("/dev")
_PROC = Path("/proc/driver/nvidia")
_ADMIN_RE = re.compile(r"^RmProfilingAdminOnly:\s*([01])", re.MULTILINE)
_VERSION_RE = re.compile(r"Kernel Module[^0-9]*([0-9]+(?:\.[0-9]+)+)")
_GPU_RE = re.compile(r"^GPU \d+: (.*?) \(UUID: .*\)$", re.MULTILINE)
_MIG_RE = re.compile(r"^\s+MIG ", re.MULTILINE)


def device_files() -> list[Path]:
    """One file for each GPU of the node."""
    return sorted(path for path in _DEV.glob("nvidia[0-9]*") if path.name[6:].isdigit())


@check("GPU", where=NODE, lane="gpu", limit_s=30.0)
def gpus(subject: Subject) -> Iterator[Row]:
    """Are the GPUs that the job asks for here?"""
    files = device_files()
    wanted = subject.request.gpus_per_node
    if not files:
        yield judge_absence(wanted, on_node=subject.on_node)
        return
    if command.find("nvidia-smi", subject.environ) is None:
        advice = "Ask for nvidia-smi on the node's PATH; nothing else needs it."
        what = f"{len(files)} device files; nvidia-smi is not on PATH"
        yield not_checked("GPU", what, advice)
        return
    said = command.run(["nvidia-smi", "-L"], subject.environ, seconds=_SECONDS)
    yield from judge_gpus(said, wanted)


def judge_absence(wanted: int, *, on_node: bool) -> Row:
    """Row about a machine without GPUs."""
    if on_node and wanted:
        advice = "Ask for them as the site spells it: gpus_per_node, or sbatch_extra: [--gpus=…]."
        return fail("GPU", f"none, but gpus_per_node is {wanted}", advice)
    if on_node:
        return not_checked("GPU", "no GPU here", "Nothing to do for a training on CPUs.")
    advice = "Use --srun to look at the compute nodes; a training on CPUs needs nothing."
    return not_checked("GPU", "no GPU on this machine (login nodes often have none)", advice)


def judge_gpus(said: command.Said, wanted: int) -> Iterator[Row]:
    """Rows out of nvidia-smi -L."""
    names = _GPU_RE.findall(said.text)
    if said.code or not names:
        advice = "Tell the administrators: the driver does not answer on this node."
        yield fail("GPU", f"nvidia-smi -L said: {said.last_line}", advice)
        return
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if wanted > len(names):
        advice = "Ask for them as the site spells it: gpus_per_node, or sbatch_extra: [--gpus=…]."
        yield fail("GPU", f"{kinds}, but gpus_per_node is {wanted}", advice)
    else:
        yield ok("GPU", kinds)
    if _MIG_RE.search(said.text):
        advice = "Ask for whole GPUs: a part of one exchanges no data directly with another."
        yield warn("MIG", "on: a rank gets a part of a GPU", advice)


@check("GPU driver", where=NODE, lane="gpu")
def driver(subject: Subject) -> Iterator[Row]:
    """Which driver, and may users read GPU counters?"""
    if not device_files():
        return
    try:
        match = _VERSION_RE.search((_PROC / "version").read_text(encoding="utf-8"))
    except OSError:
        match = None
    if match:
        yield ok("GPU driver", match[1])
    else:
        yield not_checked("GPU driver", f"{_PROC}/version tells nothing", "Try nvidia-smi by hand.")
    try:
        params = (_PROC / "params").read_text(encoding="utf-8")
    except OSError as error:
        params = ""
        reason = error.strerror or str(error)
    else:
        reason = "RmProfilingAdminOnly is not in it"
    yield judge_counters(params, reason)


def judge_counters(params: str, reason: str = "") -> Row:
    """Row about who may read the GPU's counters."""
    match = _ADMIN_RE.search(params)
    if match is None:
        advice = f"Look for RmProfilingAdminOnly in {_PROC}/params by hand."
        return not_checked("GPU counters", f"{_PROC}/params: {reason}", advice)
    if match[1] == "0":
        return ok("GPU counters", "open to users")
    return warn(
        "GPU counters",
        "for administrators only: no kernels by TensorFlow's profiler, no --gpu-metrics of nsys; "
        "traces of kernels by nsys mostly work",
        "Ask for the option NVreg_RestrictProfilingToAdminUsers=0 of the nvidia kernel module.",
    )


@check("GPU libraries", where=NODE, lane="gpu", limit_s=20.0)
def libraries(subject: Subject) -> Iterator[Row]:
    """Can the training load libcuda and libcupti?"""
    if not device_files():
        return
    if not subject.python:
        what = "no Python of a training to try it with"
        yield not_checked("GPU libraries", what, subject.naming_advice)
        return
    argv = [*subject.python, "-c", programs.text_of("libraries")]
    said = command.run(argv, subject.environ, seconds=_SECONDS)
    found = programs.answers(said.text)
    if not found:
        advice = "Try python -c \"import ctypes; ctypes.CDLL('libcuda.so.1')\" there."
        yield not_checked("GPU libraries", f"the program said: {said.last_line}", advice)
        return
    yield judge_libraries(found[0])


def judge_libraries(found: Mapping[str, Any]) -> Row:
    """Row out of what the training's Python could load."""
    if not found.get("cuda"):
        advice = "In a container: start it with --nv (Apptainer); else tell the administrators."
        return fail("GPU libraries", "libcuda.so.1 cannot be loaded", advice)
    if not found.get("wanted"):
        return ok("GPU libraries", "libcuda.so.1; TensorFlow does not tell its libcupti")
    if not found.get("cupti"):
        advice = "Load the CUDA module of TensorFlow's version for tf.profiler; nsys has its own."
        what = f"libcuda.so.1; no libcupti.so.{found['wanted']}, which TensorFlow was built for"
        return warn("GPU libraries", what, advice)
    return ok("GPU libraries", f"libcuda.so.1, {os.path.basename(str(found['cupti']))}")


@check("DCGM", where=NODE, lane="gpu")
def dcgm(subject: Subject) -> Iterator[Row]:
    """Does DCGM watch the GPUs here?"""
    if device_files() and command.find("dcgmi", subject.environ):
        yield ok(
            "DCGM",
            "here; it may own the counters, so --gpu-metrics of nsys wants dcgmi profile --pause",
        )
