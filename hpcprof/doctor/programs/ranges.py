"""Push 15 NVTX ranges in our domain, the way annotate does; answers the version of nvtx.

Run by the training's Python under ``hpcprof launch``, which puts hpcprof on its path.
"""

from __future__ import annotations

import json
import sys
import time

MARK = "HPCPROF-DOCTOR-ANSWER "
RANGES = 15


def main() -> None:
    """Answer {"nvtx": version} or {"problem": words}, then push."""
    try:
        from hpcprof.annotate.nvtx_ranges import open_domain
    except Exception as error:
        found, domain = {"problem": f"hpcprof cannot be imported: {error}"}, None
    else:
        notes: list[str] = []
        domain = open_domain(notes.append)
        found = {"problem": " ".join(notes)} if domain is None else {"nvtx": version()}
    sys.stdout.write("\n" + MARK + json.dumps(found) + "\n")
    sys.stdout.flush()
    if domain is None:
        return
    for number in range(RANGES):
        domain.push(f"doctor {number}")
        time.sleep(0.02)
        domain.pop()


def version() -> str:
    """Version of the package nvtx, "unknown" when nobody knows."""
    from importlib import metadata

    try:
        return metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
