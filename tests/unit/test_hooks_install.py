"""A hook that cannot attach is noted, and the training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.annotate.hooks.registry import HOOKS
from hpcprof.artifacts import rank_env
from tests.unit import annotated

pytestmark = pytest.mark.unit

# what wrapt does, for a module that is imported afterwards by name
WRAPT = """
import builtins, sys
_hooks, _import = {}, builtins.__import__
def register_post_import_hook(hook, name):
    _hooks.setdefault(name, []).append(hook)
def _hooked(name, *args, **kwargs):
    module = _import(name, *args, **kwargs)
    for hook in _hooks.pop(name, ()):
        hook(sys.modules[name])
    return module
builtins.__import__ = _hooked
"""

INSTALL = """
os.environ["HPCPROF_OWNER_PID"] = str(os.getpid())
from hpcprof.annotate import hooks
hooks.install()
import tensorflow.python.eager.backprop
print("trained")
"""


def run(root: Path, *, wrapt: str, **more: str) -> tuple[str, dict[str, str] | None]:
    """Run a training whose tensorflow holds nothing; what its hooks say, None for nothing."""
    packages, folder = root / "packages", root / "run" / "ranks" / "00003"
    folder.mkdir(parents=True)
    (packages / "tensorflow/python/eager").mkdir(parents=True)
    for package in ("tensorflow", "tensorflow/python", "tensorflow/python/eager"):
        (packages / package / "__init__.py").write_text("")
    (packages / "tensorflow/python/eager/backprop.py").write_text("")
    (packages / "wrapt.py").write_text(wrapt)
    env = annotated.environ(folder, root / "state", **more)
    env["PYTHONPATH"] = os.pathsep.join([str(packages), env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", annotated.PREAMBLE + INSTALL],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = folder / "training.json"
    return done.stdout, json.loads(written.read_text())["hooks"] if written.exists() else None


def test_a_hook_that_finds_nothing_to_attach_to_says_so(tmp_path: Path) -> None:
    stdout, hooks = run(tmp_path, wrapt=WRAPT)
    assert stdout == "trained\n"
    assert hooks is not None
    assert hooks["gradients"].startswith("failed: tensorflow.python.eager.backprop: AttributeError")


def test_without_wrapt_nothing_is_attached_and_that_is_said(tmp_path: Path) -> None:
    stdout, hooks = run(tmp_path, wrapt="raise ImportError('broken')")
    assert stdout == "trained\n"
    assert hooks == {"all": "failed: wrapt cannot be imported: ImportError('broken')"}


def test_hooks_that_are_off_leave_no_trace(tmp_path: Path) -> None:
    assert run(tmp_path, wrapt=WRAPT, **{rank_env.HOOKS: "0"}) == ("trained\n", None)


def test_every_hook_names_a_function_that_is_there() -> None:
    for hook in HOOKS:
        module, _, function = hook.attach.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], function)), hook
