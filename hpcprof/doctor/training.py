"""Does the training's Python have what it needs, in versions that fit each other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcprof.doctor import command, programs
from hpcprof.doctor.nsys import build_of
from hpcprof.doctor.registry import NODE, check
from hpcprof.doctor.row import Row, fail, not_checked, ok, warn
from hpcprof.doctor.subject import Request, Subject

# importing TensorFlow from a cold network file system
_SECONDS = 28.0
_BY_HAND = "Try python -c 'import tensorflow' there by hand: a second import is often faster."
_LEAST_PYTHON = [3, 8]
NVTX_ADVICE = "Install it into the training's environment: pip install 'nvtx<0.2.12'"
# nvtx from 0.2.12 on was seen to record nothing with these; the first good nsys is not known
_NVTX_CHANGED = (0, 2, 12)
_NSYS_SEEN_BAD = ("2022.", "2023.1", "2023.2")

Packages = Mapping[str, "str | None"]


@check("training", where=NODE, lane="training", limit_s=_SECONDS + 5, instead=_BY_HAND)
def environment(subject: Subject) -> Iterator[Row]:
    """Can the training's Python import TensorFlow and Horovod, built as hpcprof needs them?"""
    if not subject.python:
        yield _unknown(subject, "there is no python to ask")
        return
    python = " ".join(subject.python)
    argv = [*subject.python, "-c", programs.text_of("packages")]
    try:
        said = command.run(argv, subject.environ, seconds=_SECONDS)
        printed, problem = said.text, f"it ended with code {said.code}: {said.last_line}"
    except command.NoAnswerError as error:
        if not programs.answers(error.printed):
            raise  # too slow to say anything is not a fault of the environment
        printed, problem = error.printed, f"no end within {_SECONDS:.0f} s"
    found = programs.answers(printed)
    if not found:
        yield _unknown(subject, f"{python}: {problem}")
        return
    packages: Packages = found[0].get("packages") or {}
    if subject.assumed and not _tensorflow(packages):
        yield _unknown(subject, f"no TensorFlow in {python}")
        return
    yield judge_python(found[0], subject.assumed)
    imported = found[1] if len(found) > 1 else {}
    yield from judge_tensorflow(packages, imported, subject, problem)
    if subject.request.strategy != "multiworker":
        yield from judge_horovod(packages, imported, subject.request, problem)
    yield from judge_numpy(packages)
    yield judge_nvtx(packages, _nsys_version(subject))
    yield judge_extras(packages)


def _unknown(subject: Subject, what: str) -> Row:
    if subject.assumed:
        return not_checked("training", f"{what} ({subject.assumed})", subject.naming_advice)
    advice = "Mend command: or python.activate in the job spec; the training would not start."
    return fail("training", what, advice)


def judge_python(answer: Mapping[str, Any], assumed: str) -> Row:
    """Row about the interpreter."""
    version = ".".join(map(str, answer["version"]))
    what = f"{version}, {answer['executable']}" + (f" ({assumed})" if assumed else "")
    if answer["version"][:2] < _LEAST_PYTHON:
        advice = "Use Python 3.8 or newer for the training; hpcprof.annotate cannot be imported."
        return fail("Python", what, advice)
    return ok("Python", what)


def judge_tensorflow(
    packages: Packages, imported: Mapping[str, Any], subject: Subject, problem: str
) -> Iterator[Row]:
    """Rows about TensorFlow: is it there, does it import, what was it built with."""
    installed = _tensorflow(packages)
    if installed is None:
        advice = "Install it into the training's environment, or mend python.activate."
        yield fail("TensorFlow", f"not installed in {' '.join(subject.python)}", advice)
        return
    found = imported.get("tensorflow")
    if found is None:
        advice = "Try python -c 'import tensorflow' in the training's environment."
        yield not_checked("TensorFlow", f"{installed} is installed; the import: {problem}", advice)
        return
    if "error" in found:
        advice = "Mend the training's environment; the message is Python's own."
        yield fail("TensorFlow", f"{installed} cannot be imported: {found['error']}", advice)
        return
    what = f"{found['version']}, {'with' if found['cuda'] else 'without'} CUDA"
    if subject.request.gpus_per_node and not found["cuda"]:
        advice = "Install tensorflow[and-cuda] or your site's build; this one trains on the CPU."
        yield fail("TensorFlow", f"{what}, but the job spec asks for GPUs", advice)
    elif found["nvtx"] is False and found["cuda"]:
        advice = "Nothing to do; reports of nsys then lack TensorFlow's names of operations."
        yield warn("TensorFlow", f"{what}, without NVTX", advice)
    else:
        nvtx = {True: ", with NVTX", False: ", without NVTX"}.get(found["nvtx"], "")
        yield ok("TensorFlow", what + nvtx)


def judge_horovod(
    packages: Packages, imported: Mapping[str, Any], request: Request, problem: str
) -> Iterator[Row]:
    """Rows about Horovod: is it there, does it import, was it built for Slurm and nsys."""
    needed = request.strategy == "horovod"
    installed = packages.get("horovod")
    if installed is None:
        if needed:
            advice = "Install Horovod with MPI into the training's environment."
            yield fail("Horovod", "not installed, but strategy is horovod", advice)
        else:
            advice = "Nothing to do if the training does not use it."
            yield not_checked("Horovod", "not installed", advice)
        return
    found = imported.get("horovod")
    if found is None:
        advice = "Try python -c 'import horovod.tensorflow' in the training's environment."
        yield not_checked("Horovod", f"{installed} is installed; the import: {problem}", advice)
        return
    if "error" in found:
        advice = "Build Horovod again for this TensorFlow; 0.28.1 fits TensorFlow 2.15."
        yield fail("Horovod", f"{installed} cannot be imported: {found['error']}", advice)
        return
    built = [kind for kind in ("mpi", "gloo", "nccl", "nvtx") if found.get(kind)]
    what = f"{found['version']}, built with {', '.join(built).upper() or 'nothing'}"
    yield _judge_horovod_build(found, what, request)


def _judge_horovod_build(found: Mapping[str, Any], what: str, request: Request) -> Row:
    if not found["mpi"]:
        advice = "Build it with HOROVOD_WITH_MPI=1: without MPI, ranks under srun are alone."
        return fail("Horovod", f"{what}; not with MPI", advice)
    if request.gpus_per_node and not found["nccl"]:
        advice = "Build it with HOROVOD_GPU_OPERATIONS=NCCL, or gradients pass through the CPU."
        return warn("Horovod", f"{what}; not with NCCL", advice)
    if found["nvtx"] is False:
        advice = "Build it with HOROVOD_WITH_NVTX=1 to see each allreduce with its bytes."
        return warn("Horovod", f"{what}; not with NVTX", advice)
    return ok("Horovod", what)


def judge_numpy(packages: Packages) -> Iterator[Row]:
    """Row about numpy, where its version does not fit TensorFlow's."""
    numpy = packages.get("numpy")
    tensorflow = _tensorflow(packages)
    if numpy and tensorflow and version_of(numpy) >= (2,) and version_of(tensorflow) < (2, 18):
        yield warn(
            "numpy",
            f"{numpy} with TensorFlow {tensorflow}, which was built for numpy 1",
            "Install it into the training's environment: pip install 'numpy<2'",
        )


def judge_nvtx(packages: Packages, nsys_version: str) -> Row:
    """Row about the package nvtx; the capture is what proves it."""
    nvtx = packages.get("nvtx")
    if nvtx is None:
        what = "not installed: reports of nsys will lack our steps and phases"
        return warn("package nvtx", what, NVTX_ADVICE)
    if version_of(nvtx) >= _NVTX_CHANGED and nsys_version.startswith(_NSYS_SEEN_BAD):
        what = f"{nvtx}; with nsys {nsys_version[:6]} it was seen to record nothing, see capture"
        return warn("package nvtx", what, NVTX_ADVICE)
    return ok("package nvtx", nvtx)


def judge_extras(packages: Packages) -> Row:
    """Row about packages that are used when they are there."""
    listed = [f"{name} {packages.get(name) or '-'}" for name in ("psutil", "mpi4py")]
    return ok("other packages", ", ".join(listed))


def version_of(text: str) -> tuple[int, ...]:
    """ "2.15.1+cu118" as (2, 15, 1); () when it begins with no number."""
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _tensorflow(packages: Packages) -> str | None:
    """Its version, whichever of its wheels is installed; None when none is."""
    return packages.get("tensorflow") or packages.get("tensorflow-cpu")


def _nsys_version(subject: Subject) -> str:
    """Version of nsys, "" when there is none or it cannot be asked."""
    try:
        build = build_of(subject)
    except (OSError, ValueError):
        return ""
    return build.version if build else ""
