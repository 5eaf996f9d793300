"""Programs that the doctor runs with the training's own Python: one file each, Python >= 3.8.

They are handed over as text (``python -c``), so that they run where hpcprof's folder is not seen,
and print one line of JSON after ``MARK``, whatever else the libraries print.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MARK = "HPCPROF-DOCTOR-ANSWER "


def text_of(name: str) -> str:
    """Source of a program, for ``python -c``."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def answers(printed: str) -> list[dict[str, Any]]:
    """What a program answered, in order; broken lines are left out."""
    found = []
    for line in printed.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
