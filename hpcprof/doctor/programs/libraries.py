"""Which of NVIDIA's libraries can this Python load? Answers {"cuda": name or error, "cupti": …}.

Run by the training's Python on a machine with a GPU. Makes no CUDA context.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import sys

MARK = "HPCPROF-DOCTOR-ANSWER "


def first_loadable(names: list[str]) -> str | None:
    """The first name that can be loaded, None when there is none."""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def cupti_names() -> list[str]:
    """Where TensorFlow finds libcupti: the loader's path, pip's packages, the CUDA toolkit."""
    names = [f"libcupti.so.{version}" for version in ("13", "12", "11.8", "11.2")]
    for folder in sys.path:
        names += glob.glob(os.path.join(folder, "nvidia", "cuda_cupti", "lib", "libcupti.so*"))
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root:
            names += glob.glob(os.path.join(root, "extras", "CUPTI", "lib64", "libcupti.so*"))
    return names


def main() -> None:
    """Answer."""
    found = {"cuda": first_loadable(["libcuda.so.1"]), "cupti": first_loadable(cupti_names())}
    sys.stdout.write("\n" + MARK + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
