"""Which of NVIDIA's libraries can this Python load? Answers {"cuda", "wanted", "cupti"}.

``wanted`` is the version of libcupti that TensorFlow was built for, None when it does not tell;
``cuda`` and ``cupti`` are what could be loaded, None for nothing. Run by the training's Python on a
machine with a GPU. Imports no TensorFlow and makes no CUDA context.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import json
import os
import re
import sys

MARK = "HPCPROF-DOCTOR-ANSWER "
_CUDA_RE = re.compile(r"'cuda_version', '([0-9]+)(\.[0-9]+)?")


def wanted_version() -> str | None:
    """As TensorFlow asks for it: "12" of CUDA 12.2, but "11.8" of CUDA 11.8."""
    spec = importlib.util.find_spec("tensorflow")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            with open(os.path.join(folder, "python", "platform", "build_info.py")) as stream:
                match = _CUDA_RE.search(stream.read())
        except OSError:
            continue
        if match:
            major, minor = match.group(1), match.group(2) or ""
            return major if int(major) >= 12 else major + minor
    return None


def cupti_names(version: str) -> list[str]:
    """Where TensorFlow finds it: the loader's path, pip's packages, the CUDA toolkit."""
    name = f"libcupti.so.{version}"
    names = [name]
    for folder in sys.path:
        names += glob.glob(os.path.join(folder, "nvidia", "cuda_cupti", "lib", name))
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root:
            names += glob.glob(os.path.join(root, "extras", "CUPTI", "lib64", name))
    return names


def first_loadable(names: list[str]) -> str | None:
    """The first name that can be loaded, None when there is none."""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def main() -> None:
    """Answer."""
    wanted = wanted_version()
    found = {
        "cuda": first_loadable(["libcuda.so.1"]),
        "wanted": wanted,
        "cupti": first_loadable(cupti_names(wanted)) if wanted else None,
    }
    sys.stdout.write("\n" + MARK + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
