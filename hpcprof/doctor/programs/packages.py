"""Which packages has this Python, and do TensorFlow and Horovod work? Two answers, in this order.

Imports nothing heavy before the first answer is out. Run by the training's Python.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "HPCPROF-DOCTOR-ANSWER "
PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "horovod", "numpy", "nvtx", "psutil", "mpi4py", "keras"),
)


def answer(value: dict[str, Any]) -> None:
    """Print one answer."""
    sys.stdout.write("\n" + MARK + json.dumps(value) + "\n")
    sys.stdout.flush()


def versions() -> dict[str, str | None]:
    """Version of each package, None where it is not installed."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def holds(path: str, text: bytes) -> bool | None:
    """Whether a file contains these bytes; None when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return text in stream.read()
    except OSError:
        return None


def tensorflow() -> dict[str, Any]:
    """Version, and whether the build has CUDA and NVTX; or why it cannot be imported."""
    try:
        import tensorflow as tf
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    folder = os.path.dirname(tf.__file__)
    nvtx = holds(os.path.join(folder, "libtensorflow_framework.so.2"), b"NVTX_INJECTION64_PATH")
    cuda = bool(tf.test.is_built_with_cuda())
    return {"version": tf.__version__, "cuda": cuda, "nvtx": nvtx}


def horovod() -> dict[str, Any]:
    """Version and how it was built, or why it cannot be imported."""
    try:
        import horovod
        import horovod.tensorflow as hvd
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    folder = os.path.dirname(hvd.__file__)
    libraries = [name for name in os.listdir(folder) if name.startswith("mpi_lib")]
    return {
        "version": horovod.__version__,
        "mpi": bool(hvd.mpi_built()),
        "gloo": bool(hvd.gloo_built()),
        "nccl": bool(hvd.nccl_built()),
        "nvtx": holds(os.path.join(folder, libraries[0]), b"HorovodOps") if libraries else None,
    }


def main() -> None:
    """Answer twice; the second may take ten seconds, or never come."""
    python: dict[str, Any] = {"executable": sys.executable, "version": list(sys.version_info[:3])}
    try:
        python["packages"] = versions()
    except ImportError:  # older than 3.8: that alone is the answer
        answer(python)
        return
    answer(python)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # only what is there is asked for: importing needs no GPU
    if python["packages"]["tensorflow"] or python["packages"]["tensorflow-cpu"]:
        found = {"tensorflow": tensorflow()}
        if python["packages"]["horovod"]:
            found["horovod"] = horovod()
        answer(found)


if __name__ == "__main__":
    main()
