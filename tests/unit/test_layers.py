"""Imports go one way, downward: the drawing of docs/architecture.md, enforced."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpcprof

pytestmark = pytest.mark.unit

PACKAGE = Path(hpcprof.__file__).parent
LEAVES = {"errors", "units", "resources"}
CONFIG = {"site_config", "job_spec", "config_file", "config_types"}
IN_JOB = {"launch", "annotate", "artifacts", "workloads"}
# room → rooms it may import besides itself and the leaves
ALLOWED = {
    "artifacts": set(),
    "annotate": {"artifacts"},
    "launch": {"artifacts", "__init__"},
    "workloads": {"annotate"},
    "submit": {"artifacts", "__init__"} | CONFIG,
    "trace": {"artifacts"},
    "readers": {"artifacts", "trace"},
    "align": {"trace"},
    "analyses": {"trace", "align"},
    "findings": {"trace", "artifacts", "align", "analyses"},
    "reports": {"trace", "analyses", "findings"},
    "pipeline": {*("artifacts", "trace", "readers", "align", "analyses", "findings", "reports")},
    "demo": {"pipeline", "launch"},
    "doctor": {"artifacts", "annotate", "launch", "submit", "readers", "__init__"} | CONFIG,
    "cli": {"artifacts", "submit", "pipeline", "demo", "doctor", "reports", "__init__"} | CONFIG,
    "__main__": {"launch", "workloads", "cli"},
    "__init__": set(),
    **dict.fromkeys(CONFIG, CONFIG),
    "job_spec": {"artifacts"} | CONFIG,  # step_range: how a job spec and the launcher write one
    **{name: set() for name in LEAVES},
}
THIRD_PARTY = {
    "submit": {"jinja2", "pydantic", "yaml"},
    "cli": {"click", "rich"},
    # all but rich only in the programs that the training's own Python runs
    "doctor": {"rich", "tensorflow", "horovod", "mpi4py"},
    "trace": {"numpy", "pandas", "pyarrow"},
    "readers": {"numpy", "pandas", "pyarrow", "google"},
    "align": {"numpy", "pandas"},
    "analyses": {"numpy", "pandas"},
    "findings": set(),
    "reports": {"rich", "jinja2", "bokeh", "markupsafe", "numpy"},
    "pipeline": {"pandas"},
    "launch": {"mpi4py", "psutil"},
    # hatchling: the hook that compiles the recorder when hpcprof is installed
    "annotate": {"nvtx", "wrapt", "tensorflow", "keras", "horovod", "hatchling"},
    "workloads": {"tensorflow", "horovod", "numpy"},
    **{name: {"pydantic", "yaml"} for name in CONFIG},
}


def _modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        yield path, relative.parts[0].removesuffix(".py")


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "hpcprof":
                yield from (f"hpcprof.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _room(name):
    part = name.split(".")[1]
    exists = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()
    return part if exists else "__init__"  # hpcprof.__version__


@pytest.mark.parametrize(("path", "room"), list(_modules()), ids=lambda value: str(value)[-40:])
def test_a_module_imports_only_rooms_below_it(path, room):
    assert room in ALLOWED, f"room {room} is not in the drawing"
    ours = {_room(name) for name in _imports(path) if name.startswith("hpcprof.")}
    assert ours - {room} - LEAVES <= ALLOWED[room]


@pytest.mark.parametrize(("path", "room"), list(_modules()), ids=lambda value: str(value)[-40:])
def test_a_module_imports_only_the_packages_of_its_room(path, room):
    tops = {name.split(".")[0] for name in _imports(path)} - {"hpcprof"}
    foreign = {top for top in tops if top not in sys.stdlib_module_names}
    assert foreign <= THIRD_PARTY.get(room, set())


@pytest.mark.parametrize(
    "module", ["hpcprof", "hpcprof.annotate", "hpcprof.__main__", "hpcprof.doctor.__main__"]
)
def test_importing_loads_nothing_heavy(module):
    heavy = [
        *("pandas", "numpy", "tensorflow", "horovod", "mpi4py"),
        *("nvtx", "click", "pydantic", "yaml", "jinja2"),
    ]
    code = f"import {module}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _runs_in_the_training(path, room):
    return room in IN_JOB | LEAVES or path.parent.name == "programs"


@pytest.mark.parametrize("path", sorted(p for p, r in _modules() if _runs_in_the_training(p, r)))
def test_in_job_modules_are_python_3_8(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
