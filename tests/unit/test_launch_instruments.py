"""What launch tells the training to record by itself, and who listens to its NVTX ranges."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcprof.annotate.native import build_hook
from hpcprof.artifacts.nvtx_format import INJECTION
from hpcprof.artifacts.paths import ArtifactPaths
from tests.unit import launching

pytestmark = pytest.mark.unit

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
TOLD = ("HPCPROF_HOOKS", "HPCPROF_OP_STEPS", "HPCPROF_TF_STEPS", "HPCPROF_TF_DEVICE")
# of the fake nsys: start the application, write a report, return the application's code
GOOD = '"$@"; code=$?; echo report > "$report"; exit $code'
# a node with a GPU, as launch sees one
GPU = "from hpcprof.launch import nsys; nsys.DEVICE_FILES = ('/dev/null',)"


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """The recorder where the package looks for it; an editable installation has put it there."""
    if not (build_hook._HERE / build_hook.LIBRARY).exists():
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        build_hook.compile_recorder()


class Launched:
    """One launch of task 3 of 4: what the application saw, and the manifest."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        settings: dict[str, Any] | None = None,
        patch: str = "pass",
        **environ: str,
    ) -> None:
        run_dir = folder / "run"
        launching.write_run_json(run_dir, **(settings or {}))
        env = launching.environ(folder)
        env.pop(INJECTION, None)
        env.update(environ)
        command = [sys.executable, "-c", SHOW]
        if not any(option.startswith("--profiler") for option in options):
            options = ("--profiler", "none", *options)
        done = launching.launch(run_dir, command, *options, env=env, patch=patch)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        self.environ: dict[str, str] = json.loads(done.stdout)
        self.manifest = launching.manifest(run_dir, int(env["SLURM_PROCID"]))

    @property
    def told(self) -> dict[str, str]:
        return {name: self.environ[name] for name in TOLD if name in self.environ}


def test_by_default_hooks_and_names_of_operations_are_on(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    assert launched.told == {"HPCPROF_OP_STEPS": "10-29"}
    assert launched.manifest["warnings"] == []


def test_settings_of_the_run_reach_the_ranks_they_are_for(tmp_path: Path) -> None:
    settings = {"hooks": False, "op_steps": "none", "tf_ranks": "0,3", "tf_steps": "7-9"}
    chosen = Launched(tmp_path / "chosen", settings=settings)
    assert chosen.told == {
        "HPCPROF_HOOKS": "0",
        "HPCPROF_TF_STEPS": "7-9",
        "HPCPROF_TF_DEVICE": "1",
    }
    other = Launched(tmp_path / "other", settings=settings, SLURM_PROCID="2")
    assert other.told == {"HPCPROF_HOOKS": "0"}


def test_the_command_line_wins_over_the_run(tmp_path: Path) -> None:
    options = ["--op-steps", "5-8", "--tf-profiler", "local1", "--tf-steps", "1-2"]
    settings = {"op_steps": None, "tf_ranks": "none", "tf_steps": "7-9", "recorder": "auto"}
    launched = Launched(tmp_path, *options, "--recorder", "none", settings=settings)
    assert launched.told == {
        "HPCPROF_OP_STEPS": "5-8",
        "HPCPROF_TF_STEPS": "1-2",
        "HPCPROF_TF_DEVICE": "1",
    }
    assert launched.manifest["recorder"] == {"name": "none", "reason": "it is not wanted"}
    launched = Launched(tmp_path / "b", "--no-hooks", "--op-steps", "none")
    assert launched.told == {"HPCPROF_HOOKS": "0"}


def test_settings_that_are_no_good_are_warnings(tmp_path: Path) -> None:
    settings = {"op_steps": "9-3", "tf_ranks": "first", "tf_steps": 7}
    launched = Launched(tmp_path, settings=settings)
    assert launched.told == {}
    op_steps, tf_ranks = launched.manifest["warnings"]
    assert op_steps.startswith("op_steps: 9-3: the last step comes before the first")
    assert tf_ranks.startswith("tf_ranks: 'first' is none of")
    launched = Launched(tmp_path / "b", settings={"tf_ranks": "all", "tf_steps": 7})
    assert "HPCPROF_TF_STEPS" not in launched.environ
    assert launched.manifest["warnings"][0].startswith("tf_steps: '7' is not a range of steps")


def test_a_wrong_option_is_said_before_anything_starts(tmp_path: Path) -> None:
    for option in (["--op-steps", "9-3"], ["--tf-steps", "none"], ["--recorder", "nsys"]):
        done = launching.launch(
            tmp_path / "run", ["echo", "ran"], *option, env=launching.environ(tmp_path)
        )
        assert (done.returncode, done.stdout) == (2, "")


def test_local_ranks_get_the_options_through_the_run(tmp_path: Path) -> None:
    options = ["--ranks", "1", "--profiler", "none", "--no-hooks", "--tf-profiler", "0"]
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", SHOW]
    done = launching.launch(run_dir, command, *options, env=launching.environ(tmp_path))
    assert done.returncode == 0, done.stderr
    environ = json.loads(done.stdout.splitlines()[0])
    assert environ["HPCPROF_HOOKS"] == "0"
    assert environ["HPCPROF_TF_STEPS"] == "30-39"
    settings = json.loads(ArtifactPaths(run_dir).run_json.read_text())["launch"]
    assert (settings["hooks"], settings["tf_ranks"], settings["op_steps"]) == (False, "0", "10-29")


def test_our_recorder_listens_where_nsys_does_not(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    folder = launched.environ["PYTHONPATH"].split(":")[0]
    assert launched.environ[INJECTION] == (f"{folder}/hpcprof/annotate/native/{build_hook.LIBRARY}")
    assert launched.manifest["recorder"] == {"name": "nvtx"}
    assert "HPCPROF_NVTX" not in launched.environ  # nsys's
    fell_back = Launched(tmp_path / "b", "--profiler", "nsys", settings={"nsys_path": "/none"})
    assert fell_back.environ[INJECTION].endswith(build_hook.LIBRARY)
    assert fell_back.manifest["recorder"] == {"name": "nvtx"}


def test_under_nsys_our_recorder_stays_away(tmp_path: Path) -> None:
    nsys = launching.fake_nsys(tmp_path / "nsys", GOOD)
    settings = {"nsys_path": str(nsys), "nsys_trace": ["nvtx"], "tf_ranks": "all"}
    launched = Launched(tmp_path, "--profiler", "nsys", settings=settings)
    assert INJECTION not in launched.environ
    assert launched.environ["HPCPROF_NVTX"] == "1"
    assert launched.manifest["profiler"]["fell_back"] is False
    reason = {"name": "none", "reason": "nsys records this rank"}
    assert launched.manifest["recorder"] == reason
    # where nsys does not trace CUDA, tf.profiler may be there too
    assert launched.environ["HPCPROF_TF_DEVICE"] == "1"


def test_a_listener_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    launched = Launched(tmp_path, **{INJECTION: "/opt/own.so"})
    assert launched.environ[INJECTION] == "/opt/own.so"
    assert launched.manifest["recorder"] == {
        "name": "none",
        "reason": "NVTX_INJECTION64_PATH is /opt/own.so already",
    }


def test_a_recorder_of_an_outer_launcher_is_replaced_by_our_own(tmp_path: Path) -> None:
    outer = f"/gone/lib/hpcprof/annotate/native/{build_hook.LIBRARY}"
    launched = Launched(tmp_path, **{INJECTION: outer})
    assert launched.environ[INJECTION] != outer
    unwanted = Launched(tmp_path / "b", "--recorder", "none", **{INJECTION: outer})
    assert INJECTION not in unwanted.environ


def test_a_recorder_that_was_not_compiled_is_said_in_the_manifest(tmp_path: Path) -> None:
    patch = "from hpcprof.artifacts import nvtx_format; nvtx_format.LIBRARY = 'none.so'"
    launched = Launched(tmp_path, patch=patch)
    assert INJECTION not in launched.environ
    assert launched.manifest["recorder"] == {
        "name": "none",
        "reason": "it was not compiled when hpcprof was installed",
    }


def test_nsys_and_tf_profiler_never_trace_cuda_on_the_same_rank(tmp_path: Path) -> None:
    nsys = launching.fake_nsys(tmp_path / "nsys", GOOD)
    settings = {"nsys_path": str(nsys), "nsys_trace": ["cuda", "nvtx"], "tf_ranks": "3"}
    chosen = Launched(tmp_path, "--profiler", "nsys", settings=settings, patch=GPU)
    assert not any(line.startswith("profile") for line in launching.calls(tmp_path / "nsys"))
    why = "tf.profiler records this rank, and only one of the two can trace CUDA"
    assert chosen.manifest["state_reason"] == why
    assert why in chosen.said
    assert chosen.environ["HPCPROF_TF_DEVICE"] == "1"
    assert chosen.manifest["recorder"] == {"name": "nvtx"}
    # TensorFlow must not take its names of operations away from tf.profiler
    assert chosen.environ["HPCPROF_NVTX_WITHOUT"] == "TSL"
    assert "HPCPROF_OP_STEPS" not in chosen.environ

    other = Launched(
        tmp_path / "b", "--profiler", "nsys", settings=settings, patch=GPU, SLURM_PROCID="2"
    )
    assert other.manifest["profiler"]["fell_back"] is False
    assert other.told == {"HPCPROF_OP_STEPS": "10-29"}


def test_without_a_gpu_names_of_operations_and_tf_profiler_go_together(tmp_path: Path) -> None:
    patch = "from hpcprof.launch import nsys; nsys.DEVICE_FILES = ()"
    launched = Launched(tmp_path, "--tf-profiler", "all", patch=patch)
    assert launched.told == {
        "HPCPROF_OP_STEPS": "10-29",
        "HPCPROF_TF_STEPS": "30-39",
        "HPCPROF_TF_DEVICE": "1",
    }
    assert "HPCPROF_NVTX_WITHOUT" not in launched.environ
