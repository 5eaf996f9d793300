"""Compiles the NVTX recorder when hpcprof is built or installed; without a compiler it is left out.

For hatchling (``tool.hatch.build.hooks.custom``). In a checkout also by hand:

    python hpcprof/annotate/native/build_hook.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # compiled by hand
    BuildHookInterface = object

LIBRARY = "libhpcprof_nvtx.so"  # as in artifacts/nvtx_format.py; a build imports nothing of hpcprof
_HERE = Path(__file__).resolve().parent
# no debug information: it would hold the path of the folder that it was built in
_OPTIONS = ("-O2", "-g0", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_SECONDS = 120


def compile_recorder(folder: Path = _HERE) -> Path:
    """Compile the library into ``folder`` with $CC, else cc. Raises OSError with the reason."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if not sys.platform.startswith("linux"):
        raise OSError("it is for Linux only")
    if shutil.which(compiler[0]) is None:
        raise OSError(f"there is no C compiler ({compiler[0]})")
    library = folder / LIBRARY
    partial = folder / f".{LIBRARY}.{os.getpid()}"
    sources = sorted(str(path) for path in _HERE.glob("*.c"))
    command = [*compiler, *_OPTIONS, "-o", str(partial), *sources]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode:
            raise OSError(f"{compiler[0]} failed: {done.stderr.strip()[-2000:]}")
        # whole or not at all: a training may be loading the one that is there
        os.replace(partial, library)
    except subprocess.TimeoutExpired:
        raise OSError(f"{compiler[0]} did not end in {_SECONDS} s") from None
    finally:
        partial.unlink(missing_ok=True)
    return library


class RecorderBuildHook(BuildHookInterface):  # type: ignore[misc,unused-ignore]
    """Puts the library into the wheel, whose name then says which platform it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the wheel, also an editable one, is put together."""
        try:
            library = compile_recorder()
        except OSError as error:
            self.app.display_warning(f"hpcprof is built without its NVTX recorder: {error}")
            return
        build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
        build_data["pure_python"] = False
        # any Python 3, and any ABI: nothing of Python's is called
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    print(compile_recorder())
