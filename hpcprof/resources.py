"""Finds the templates and site files, in a checkout and in an installed wheel alike."""

from __future__ import annotations

import os
from pathlib import Path

from hpcprof.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder ``slurm`` or ``site_configs``: package data in a wheel, top level in a checkout.

    Raises InputError when neither exists (a broken installation).
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise InputError(
        f"hpcprof's own folder {name!r} was not found beside {_PACKAGE}. "
        "The installation is incomplete; install hpcprof again."
    )


def import_root() -> str:
    """The folder to put on PYTHONPATH so that ``import hpcprof`` works in another environment."""
    return os.fspath(_PACKAGE.parent)
