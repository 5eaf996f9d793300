"""What hpcprof needs inside a container arrives there, and what is the user's stays.

The runtime is a program of the test that binds, cleans and sets variables as the user guide of
Apptainer says; no real one has been run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcprof
from hpcprof.artifacts import nvtx_format, rank_env
from hpcprof.launch import container
from hpcprof.launch.attempt import MARK_VARIABLE
from hpcprof.launch.state_folder import link_package

pytestmark = pytest.mark.unit

PACKAGE = str(Path(hpcprof.__file__).parent.resolve())
# the image is a file with what its %environment sets, which wins over the host's variables; given
# ones win over both, read by a shell as in double quotes
RUNTIME = r"""
import json, os, sys
prefix = os.path.basename(sys.argv[0]).upper()
options, rest = [], sys.argv[2:]
while rest[0].startswith("-"):
    options.append(rest.pop(0))
image, *command = rest
inside = {k: v for k, v in os.environ.items() if not k.startswith(prefix)}
if "--cleanenv" in options:
    inside = {}
with open(image) as stream:
    inside.update(json.load(stream))
given = {k[len(prefix) + 4:]: v for k, v in os.environ.items() if k.startswith(prefix + "ENV_")}
quote = "'%s'" if "--no-eval" in options else '"%s"'
script = "".join(f"export {k}={quote % v}\n" for k, v in given.items())
binds = [path for path in os.environ.get(prefix + "_BIND", "").split(",") if path]
with open(image + ".binds", "w") as stream:
    json.dump(binds, stream)
words = ["sh", "-c", script + 'exec "$@"', "sh", *command]
if os.environ.get("TEST_HIDE"):
    hide = ["set -e; umask 022; mount -t tmpfs none /mnt; cd /"]
    kind = {path: "mkdir -p" if os.path.isdir(path) else "touch" for path in binds}
    for number, path in enumerate(binds):
        hide.append(f"{kind[path]} /mnt/{number}; mount --bind '{path}' /mnt/{number}")
    hide.append('mount -t tmpfs none "$TEST_HIDE"')
    for number, path in enumerate(binds):
        hide.append(f"mkdir -p '{os.path.dirname(path)}'; {kind[path]} '{path}'")
        hide.append(f"mount --bind /mnt/{number} '{path}'")
    variables = [f"{name}={value}" for name, value in inside.items()]
    hide.append('exec env -i "$@"')
    words = ["unshare", "--mount", "sh", "-c", "\n".join(hide), "sh", *variables, *words]
    inside = dict(os.environ)
os.execvpe(words[0], words, {"PATH": os.environ["PATH"], **inside})
"""
REPORT = """
import json, os, sys
import hpcprof.annotate
print(json.dumps({"environ": dict(os.environ), "file": os.path.realpath(hpcprof.__file__)}))
"""


def write_runtimes(folder: Path) -> None:
    """Programs named as the two runtimes, in a new folder."""
    folder.mkdir(parents=True)
    for name in ("apptainer", "singularity"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{RUNTIME}")
        program.chmod(0o755)


class Host:
    """A node with both runtimes, an image, and the folders of one rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "runs/cnn-1"
        self.state = folder / "scratch/hpcprof-0/1.0.0.7"
        self.image = folder / "image.json"
        write_runtimes(folder / "bin")
        self.image_sets()
        for made in (self.run_dir, self.state):
            made.mkdir(parents=True)
        self.lib = link_package(self.state)
        self.environ = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.lib}{os.pathsep}/home/me/lib",
            rank_env.RANK_FOLDER: str(self.run_dir / "ranks/00000"),
            rank_env.STATE_FOLDER: str(self.state),
            "MINE": "1",
        }

    def image_sets(self, **variables: str) -> None:
        self.image.write_text(json.dumps({"PATH": os.environ["PATH"], **variables}))

    def run(self, *options: str, program: str = "apptainer", **more: str) -> dict[str, Any]:
        """Run REPORT in the image; what it saw, and the binds."""
        words = [program, "exec", *options, str(self.image), sys.executable, "-c", REPORT]
        binds = [self.run_dir, self.state]
        argv, environ = container.command(words, {**self.environ, **more}, binds)
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        bound = json.loads(Path(f"{self.image}.binds").read_text())
        return {**json.loads(done.stdout), "binds": bound}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.mark.parametrize("program", ["python", "./apptainer.sh", "/opt/singularity/python", "bash"])
def test_a_program_that_is_no_container_is_left_alone(host: Host, program: str) -> None:
    words = [program, "exec", "apptainer"]
    assert container.command(words, host.environ, [host.run_dir]) == (words, host.environ)


@pytest.mark.parametrize("options", [(), ("--cleanenv",)])
@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_hpcprof_is_found_inside(host: Host, program: str, options: tuple[str, ...]) -> None:
    seen = host.run(*options, program=program)
    assert seen["binds"] == [str(host.run_dir), str(host.state), PACKAGE]
    assert seen["file"] == f"{PACKAGE}/__init__.py"
    names = (rank_env.RANK_FOLDER, rank_env.STATE_FOLDER)
    assert [seen["environ"][name] for name in names] == [host.environ[name] for name in names]
    assert ("MINE" in seen["environ"]) == (options == ())
    # the host's own folders of Python are the image's business only where its variables are
    expected = f"{host.lib}:{host.lib}:/home/me/lib" if options == () else str(host.lib)
    assert seen["environ"]["PYTHONPATH"] == expected


def test_what_the_image_or_the_user_says_of_pythonpath_stays(host: Host) -> None:
    host.image_sets(PYTHONPATH="/image/lib")
    assert host.run()["environ"]["PYTHONPATH"] == f"{host.lib}:/image/lib"
    seen = host.run("--cleanenv", APPTAINERENV_PYTHONPATH="/given:$PYTHONPATH")
    assert seen["environ"]["PYTHONPATH"] == f"{host.lib}:/given:/image/lib"
    seen = host.run("--cleanenv", program="singularity", SINGULARITYENV_PYTHONPATH="/given")
    assert seen["environ"]["PYTHONPATH"] == f"{host.lib}:/given"
    assert host.run("--no-eval")["environ"]["PYTHONPATH"] == str(host.lib)


def test_binds_are_added_to_those_of_the_user(host: Host) -> None:
    ours = [str(host.run_dir), str(host.state), PACKAGE]
    assert host.run(APPTAINER_BIND="/data:/d:ro,/opt")["binds"] == ["/data:/d:ro", "/opt", *ours]
    assert host.run(SINGULARITY_BIND="/opt")["binds"] == ["/opt", *ours]
    assert host.run(APPTAINER_BIND=f"{host.state}")["binds"] == [ours[1], ours[0], ours[2]]


def test_only_what_can_be_bound_is(host: Host) -> None:
    strange = host.folder / "a,b:c"
    strange.mkdir()
    binds = [host.folder / "gone", strange, host.run_dir]
    _, environ = container.command(["apptainer", "exec", "i", "x"], host.environ, binds)
    assert environ["APPTAINER_BIND"] == environ["SINGULARITY_BIND"] == f"{host.run_dir},{PACKAGE}"


def test_a_value_that_the_containers_shell_would_change_is_not_given_to_it(host: Host) -> None:
    seen = host.run(HPCPROF_RUN_DIR="/runs/$HOME", HPCPROF_WINDOW="20-59,cuda")
    assert seen["environ"]["HPCPROF_RUN_DIR"] == "/runs/$HOME"  # as the host's own
    seen = host.run("--cleanenv", HPCPROF_RUN_DIR="/runs/$HOME", HPCPROF_WINDOW="20-59,cuda")
    assert "HPCPROF_RUN_DIR" not in seen["environ"]
    assert seen["environ"]["HPCPROF_WINDOW"] == "20-59,cuda"


def test_what_nsys_sets_for_its_program_arrives_inside(host: Host) -> None:
    nsys = host.folder / "nsys/target"
    nsys.mkdir(parents=True)
    config = host.folder / "injection_config_1"
    config.touch()
    variables = {
        "NVTX_INJECTION64_PATH": f"{nsys}/libToolsInjection64.so",
        "QUADD_INJECTION_CONFIG": str(config),
        "NSYS_PROFILING_SESSION_ID": "77",
        "NSYS_AGENT_TMP_DIR": str(host.state.parent),
        "USE_AGENT_API": "1",
    }
    seen = host.run("--cleanenv", **variables, HPCPROF_NVTX="1", HPCPROF_NSYS_ATTEMPT="x")
    assert {name: seen["environ"].get(name) for name in variables} == variables
    assert "HPCPROF_NSYS_ATTEMPT" not in seen["environ"]
    assert {str(nsys), str(config), str(host.state.parent)} <= set(seen["binds"])
    # only nsys's own process knows its variables: nothing is passed on before
    assert "NSYS_PROFILING_SESSION_ID" not in host.run("--cleanenv", **variables)["environ"]


def test_libraries_of_nsys_come_before_those_that_image_or_user_preload(host: Host) -> None:
    nsys = "/opt/nsys/libToolsInjectionProxy64.so:/opt/nsys/libLinuxKeyboard.so"
    environ = {"LD_PRELOAD": f"{nsys}:/home/me/own.so", "APPTAINERENV_LD_PRELOAD": "/given.so"}
    words = ["apptainer", "exec", "image", "x"]
    passed = container.with_nsys(environ, words)
    assert passed["APPTAINERENV_LD_PRELOAD"] == f"{nsys}:/given.so"
    assert passed["LD_PRELOAD"] == environ["LD_PRELOAD"]
    del environ["APPTAINERENV_LD_PRELOAD"]
    passed = container.with_nsys(environ, words)
    assert passed["SINGULARITYENV_LD_PRELOAD"] == nsys + "${LD_PRELOAD:+:$LD_PRELOAD}"
    assert "APPTAINERENV_LD_PRELOAD" not in container.with_nsys({"LD_PRELOAD": "/own.so"}, words)


def test_a_runtime_that_is_not_there_is_said_as_a_shell_says_it(host: Host) -> None:
    environ = {**host.environ, "PATH": "/nonexistent", rank_env.NVTX: "1"}
    argv, environ = container.command(["apptainer", "exec", "i", "x"], environ, [])
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (127, "")
    assert "cannot run 'apptainer': No such file or directory" in done.stderr


def test_names_that_are_repeated_here_are_those_of_the_others() -> None:
    assert (container.LISTENER, container.NSYS_MARK) == (rank_env.NVTX, MARK_VARIABLE)
    assert (container.INJECTION, container.RECORDER) == (nvtx_format.INJECTION, nvtx_format.LIBRARY)


def test_our_recorder_is_told_inside_and_a_listener_of_others_is_not(host: Host) -> None:
    ours = f"{host.lib}/hpcprof/annotate/native/{nvtx_format.LIBRARY}"
    seen = host.run("--cleanenv", **{nvtx_format.INJECTION: ours})
    assert seen["environ"][nvtx_format.INJECTION] == ours
    assert {str(host.state), PACKAGE} <= set(seen["binds"])  # where that path leads
    seen = host.run("--cleanenv", **{nvtx_format.INJECTION: "/opt/other.so"})
    assert nvtx_format.INJECTION not in seen["environ"]


def can_mount() -> bool:
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="needs root, to hide folders from a program")
def test_nothing_else_of_the_host_has_to_be_visible(tmp_path: Path) -> None:
    package = tmp_path / "host/venv/hpcprof"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    host = Host(tmp_path / "host/node")
    (host.lib / "hpcprof").unlink()
    (host.lib / "hpcprof").symlink_to(package)
    driver = (
        "import json, os, sys; from pathlib import Path; from hpcprof.launch import container;"
        "words, binds = json.load(sys.stdin);"
        "argv, environ = container.command(words, os.environ, [Path(p) for p in binds]);"
        "os.execvpe(argv[0], argv, environ)"
    )
    code = f"import os; print(sorted(os.listdir({str(tmp_path / 'host')!r})));{REPORT}"
    words = ["apptainer", "exec", "--cleanenv", str(host.image), sys.executable, "-c", code]
    environ = {**host.environ, "TEST_HIDE": str(tmp_path), "HPCPROF_NVTX": "1"}
    environ["PYTHONPATH"] = f"{host.lib}:{package.parent}"
    done = subprocess.run(
        [sys.executable, "-c", driver],
        input=json.dumps([words, [str(host.run_dir), str(host.state)]]),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, report = done.stdout.splitlines()
    assert names == "['node', 'venv']"
    assert json.loads(report)["file"] == f"{package}/__init__.py"
