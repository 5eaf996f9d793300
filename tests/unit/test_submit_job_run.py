"""Job scripts as programs: run by bash with a stub for srun, as Slurm's batch step runs them."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcprof.artifacts.paths import run_folder_name
from hpcprof.artifacts.run_record import launch_settings
from hpcprof.submit.script import render_collect_script, render_job_script
from tests.unit.slurm_stubs import (
    Stubs,
    agent_words,
    install_stubs,
    launched,
    make_site,
    make_spec,
    place_in,
    run_script,
    script_for,
    write_program,
)

pytestmark = pytest.mark.unit

# of the srun that starts the ranks, where a profiler may run
TRAINING_OPTIONS = ["--export=ALL", "--cpus-per-task=1", "--wait=0"]

# quotes, expansions, an end of the here-document, directives, option look-alikes
HOSTILE = [
    "",
    "'",
    '"',
    "a b",
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "a\nb",
    "\nEND_OF_RUN_JSON\ntouch pwned\n",
    "x\n#SBATCH --nodes=99\n",
    "'; touch pwned; '",
    "\\",
    "\\\n",
    "{{ 1 }}",
    "{% raw %}",
    "--help",
    "&",
    "> pwned",
    "!!",
    "é\u2028ü",
    "*",
    "~",
    "#",
]


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return install_stubs(tmp_path)


def test_ranks_start_under_launch_in_a_private_run_folder(stubs: Stubs, tmp_path: Path) -> None:
    profile = {"ranks": "0", "extra": ["--x=1"], "steps": "20-59", "hang_after_s": 90}
    spec = make_spec(nodes=2, ranks_per_node=3, profile=profile)
    script = script_for(stubs, spec, nsys={"path": "/opt/nsys", "extra": ["--y=2"]})
    done = run_script(script, stubs)
    run_dir = tmp_path / "runs/cnn-4711"
    assert (done.returncode, done.stderr) == (0, "")
    (call,) = stubs.calls()
    assert call["argv"] == [*TRAINING_OPTIONS, *launched(stubs), "train"]
    assert call["cwd"] == str(tmp_path)
    assert call["env"]["HPCPROF_RUN_DIR"] == str(run_dir)
    assert call["env"]["HPCPROF_PYTHON"] == str(stubs.bin / "hpcprof-python")
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((run_dir / "run.json").stat().st_mode) == 0o600
    assert (run_dir / "job.sbatch").read_text() == script
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["name"], record["strategy"], record["world_size"]) == ("cnn", "horovod", 6)
    assert record["spec"]["command"] == ["train"]
    assert record["site"]["name"] == "here"
    assert record["versions"] == {"hpcprof": "1.2.3"}
    assert launch_settings(run_dir / "run.json") == {
        "profiler": "auto",
        "nsys_path": "/opt/nsys",
        "nsys_trace": ["cuda", "nvtx", "mpi"],
        "nsys_extra": ["--y=2", "--x=1"],
        "profile_ranks": "0",
        "profile_steps": "20-59",
        "hooks": True,
        "recorder": "auto",
        "op_steps": "20-39",
        "tf_ranks": None,
        "tf_steps": "30-39",
        "hang_after_s": 90,
        "agent": "auto",
        "agent_interval_s": 30,
        "data_dir": None,
        "scratch": None,
    }


def test_one_agent_per_node_shares_the_resources_and_is_ended_after_the_training(
    stubs: Stubs, tmp_path: Path
) -> None:
    spec = make_spec(nodes=2, ranks_per_node=3, gpus_per_node=1)
    started = time.monotonic()
    done = run_script(
        script_for(stubs, spec, slurm={"srun": {"mpi": "pmix"}}),
        stubs,
        STUB_SLEEP="0.5",
        STUB_EXIT="7",
        STUB_AGENT_SLEEP="60",
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert time.monotonic() - started < 30
    (call,) = stubs.agent_calls()
    assert {"--overlap", "--gres=none", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(
        call["argv"]
    )
    assert call["argv"][-6:] == ["--mpi=pmix", *agent_words()]
    assert (tmp_path / "runs/cnn-4711/nodes/agent.log").read_text() == "agent says hello\n"


def test_agents_that_mpi_has_taken_down_are_started_once_more_without_it(
    stubs: Stubs, tmp_path: Path
) -> None:
    spec = make_spec(nodes=2)
    script = script_for(stubs, spec, slurm={"srun": {"mpi": "pmix"}})
    done = run_script(script, stubs, STUB_SLEEP="1", STUB_EXIT="3")  # the agents end with code 5
    assert (done.returncode, done.stderr) == (3, "")
    first, second = stubs.agent_calls()
    assert first["argv"][-6:] == ["--mpi=pmix", *agent_words()]
    assert second["argv"] == [
        *first["argv"][:-5],
        "--mpi=none",
        *first["argv"][-5:],
        "--transport=udp",
    ]
    log = (tmp_path / "runs/cnn-4711/nodes/agent.log").read_text()
    assert "job step ended with code 5; the agents are started again, over UDP and TCP" in log


def test_an_agent_that_is_not_wanted_is_not_started(stubs: Stubs, tmp_path: Path) -> None:
    script = script_for(stubs, make_spec(name="plain", profile={"agent": "none"}))
    done = run_script(script, stubs, STUB_EXIT="3")
    assert (done.returncode, done.stderr, stubs.agent_calls()) == (3, "", [])
    assert not (tmp_path / "runs/plain-4711/nodes").exists()


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({}, "10-29"),
        ({"steps": "20-30"}, "20-30"),
        ({"steps": "20-30", "op_steps": "5-6"}, "5-6"),
        ({"op_steps": "none"}, "none"),
    ],
)
def test_operations_are_named_in_steps_that_are_recorded(
    stubs: Stubs, tmp_path: Path, profile: dict[str, str], expected: str
) -> None:
    run_script(script_for(stubs, make_spec(profile=profile)), stubs)
    assert launch_settings(tmp_path / "runs/cnn-4711/run.json")["op_steps"] == expected


def test_what_the_training_records_by_itself_reaches_launch(stubs: Stubs, tmp_path: Path) -> None:
    profile = {"hooks": False, "recorder": "none", "tf_ranks": "0,local1", "tf_steps": "7-9"}
    run_script(script_for(stubs, make_spec(profile=profile)), stubs)
    settings = launch_settings(tmp_path / "runs/cnn-4711/run.json")
    assert {name: settings[name] for name in profile} == profile


@pytest.mark.parametrize("expected", [True, False])
def test_without_horovods_cache_only_where_ticks_are_wanted(stubs: Stubs, expected: bool) -> None:
    spec = make_spec(profile={"horovod_timeline": True, "horovod_ticks": expected})
    run_script(script_for(stubs, spec), stubs)
    (call,) = stubs.calls()
    assert call["env"].get("HOROVOD_CACHE_CAPACITY") == ("0" if expected else None)


@pytest.mark.parametrize("expected", [True, False])
def test_horovods_timeline_goes_into_the_run_folder(
    stubs: Stubs, tmp_path: Path, expected: bool
) -> None:
    spec = make_spec(profile={"horovod_timeline": expected})
    run_script(script_for(stubs, spec), stubs)
    path = tmp_path / "runs/cnn-4711/horovod/timeline.json"
    (call,) = stubs.calls()
    assert call["env"].get("HOROVOD_TIMELINE") == (str(path) if expected else None)
    assert path.parent.exists() is expected


def test_the_data_set_is_told_to_the_agent(stubs: Stubs, tmp_path: Path) -> None:
    place = place_in(tmp_path, stubs, data_dir=Path("/data/images"))
    run_script(render_job_script(make_spec(), make_site(), place), stubs)
    settings = launch_settings(tmp_path / "runs/cnn-4711/run.json")
    assert settings["data_dir"] == "/data/images"


@pytest.mark.parametrize(
    "slurm",
    [
        {},
        {"SLURM_RESTART_COUNT": "0"},
        {"SLURM_RESTART_COUNT": ""},
        {"SLURM_RESTART_COUNT": "2"},
        {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"},
        {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "1"},
    ],
)
def test_bash_and_python_agree_on_the_run_folder(
    stubs: Stubs, tmp_path: Path, slurm: dict[str, str]
) -> None:
    run_script(script_for(stubs), stubs, **slurm)
    name = run_folder_name({"SLURM_JOB_ID": "4711", **slurm}, "cnn")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [name]


@pytest.mark.parametrize("code", [0, 1, 7, 137])
def test_exit_code_is_that_of_the_training(stubs: Stubs, code: int) -> None:
    assert run_script(script_for(stubs), stubs, STUB_EXIT=str(code)).returncode == code


def test_training_keeps_the_umask_of_its_user(stubs: Stubs, tmp_path: Path) -> None:
    path = tmp_path / "slurm_script"
    path.write_text(script_for(stubs))
    command = f"umask 027; exec bash {shlex.quote(str(path))}"
    subprocess.run(["bash", "-c", command], env=stubs.environ(SLURM_JOB_ID="1"), check=True)
    assert stubs.calls()[0]["umask"] == 0o027


def test_training_runs_alone_when_there_can_be_no_run_folder(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = run_script(script_for(stubs), stubs, STUB_EXIT="3")
    assert done.returncode == 3
    assert "the training runs without hpcprof, for the reason above" in done.stderr
    (call,) = stubs.calls()
    assert call["argv"] == [*TRAINING_OPTIONS, "train"]
    assert "HPCPROF_RUN_DIR" not in call["env"]


def test_second_run_in_the_same_job_leaves_the_first_folder_alone(
    stubs: Stubs, tmp_path: Path
) -> None:
    run_script(script_for(stubs), stubs)
    before = (tmp_path / "runs/cnn-4711/run.json").stat().st_mtime_ns
    done = run_script(script_for(stubs), stubs)
    assert "File exists" in done.stderr
    assert (tmp_path / "runs/cnn-4711/run.json").stat().st_mtime_ns == before
    assert len(stubs.calls()) == 2


def test_training_runs_alone_when_the_interpreter_is_not_on_the_node(
    stubs: Stubs, tmp_path: Path
) -> None:
    place = place_in(tmp_path, interpreter="/nonexistent/python")
    done = run_script(render_job_script(make_spec(), make_site(), place), stubs)
    assert done.returncode == 0
    assert "/nonexistent/python: No such file" in done.stderr
    assert stubs.calls()[0]["argv"] == [*TRAINING_OPTIONS, "train"]


def test_multiworker_ranks_get_the_host_list(stubs: Stubs) -> None:
    run_script(script_for(stubs, make_spec(strategy="multiworker", nodes=2)), stubs)
    assert stubs.calls()[0]["env"]["HPCPROF_HOSTS"] == "node0 node1"


def test_environment_of_site_and_spec_reaches_the_ranks(stubs: Stubs, tmp_path: Path) -> None:
    write_program(tmp_path / "env.sh", "export FROM_SITE=1 ORDER=site\nfalse; echo $UNSET\ntrue\n")
    spec = make_spec(
        env={"A": "spec"}, python={"activate": "export ORDER=$ORDER,spec\nf() { :; }; f"}
    )
    site = {"env": {"set": {"A": "site", "B": "1"}}, "python": {"activate": ". ./env.sh"}}
    done = run_script(script_for(stubs, spec, **site), stubs)
    assert done.returncode == 0
    env = stubs.calls()[0]["env"]
    assert (env["A"], env["B"], env["FROM_SITE"], env["ORDER"]) == ("spec", "1", "1", "site,spec")


@pytest.mark.parametrize("activate", ["source /nonexistent", "if (", "(exit 3)", "return 3"])
def test_job_goes_on_when_activation_reports_an_error(stubs: Stubs, activate: str) -> None:
    done = run_script(script_for(stubs, make_spec(python={"activate": activate})), stubs)
    assert done.returncode == 0
    assert "hpcprof: python.activate ended with exit code " in done.stderr
    assert stubs.calls()[0]["argv"][-1] == "train"


def test_a_strict_activation_does_not_reach_the_next_one(stubs: Stubs) -> None:
    site = {"python": {"activate": "set -euo pipefail"}}
    spec = make_spec(python={"activate": 'export SEEN="as$UNSET"'})
    done = run_script(script_for(stubs, spec, **site), stubs, STUB_EXIT="3")
    assert (done.returncode, done.stderr) == (3, "")
    assert stubs.calls()[0]["env"]["SEEN"] == "as"


def test_slurm_ends_the_other_ranks_as_ever_where_nothing_is_profiled(stubs: Stubs) -> None:
    spec = make_spec(profile={"profiler": "none"}, srun_extra=["--wait=60"])
    run_script(script_for(stubs, spec), stubs)
    options = stubs.calls()[0]["argv"]
    assert [option for option in options if "wait" in option] == ["--wait=60"]


def test_job_stops_when_workdir_is_not_there(stubs: Stubs, tmp_path: Path) -> None:
    place = place_in(tmp_path, stubs, workdir=Path("/nonexistent/it's"))
    done = run_script(render_job_script(make_spec(), make_site(), place), stubs)
    assert done.returncode == 3
    assert "cannot enter workdir /nonexistent/it's on" in done.stderr
    assert stubs.calls() == []


def test_modules_are_loaded_before_the_training(stubs: Stubs, tmp_path: Path) -> None:
    module = f'module() {{ echo "$@" >> {tmp_path}/modules; [ "$2" != missing ]; }}\n'
    bash_env = write_program(tmp_path / "bash_env", module)
    site = {"modules": {"load": ["cuda/12", "it's"], "profile_load": ["nsys"]}}
    run_script(script_for(stubs, **site), stubs, BASH_ENV=str(bash_env))
    assert (tmp_path / "modules").read_text() == "load cuda/12 it's\nload nsys\n"
    assert len(stubs.calls()) == 1


def test_only_a_module_of_the_training_stops_the_job(stubs: Stubs, tmp_path: Path) -> None:
    bash_env = str(write_program(tmp_path / "bash_env", "module() { false; }\n"))
    script = script_for(stubs, modules={"load": ["cuda"]})
    done = run_script(script, stubs, BASH_ENV=bash_env)
    assert (done.returncode, stubs.calls()) == (4, [])
    assert done.stderr == "hpcprof: a module of the training is missing\n"
    script = script_for(stubs, modules={"profile_load": ["nsys"]})
    done = run_script(script, stubs, BASH_ENV=bash_env)
    assert (done.returncode, len(stubs.calls())) == (0, 1)
    assert done.stderr == "hpcprof: a module for profiling is missing\n"


def assert_carried_unchanged(folder: Path, values: list[str]) -> None:
    """Every field that takes free text carries ``values`` to where they belong, and only there."""
    text = "".join(values)
    stubs = install_stubs(folder)
    spec = make_spec(
        command=["train", *values],
        env={f"V{number}": value for number, value in enumerate(values)},
        python={"activate": f"CARRIED={shlex.quote(text)}\nexport CARRIED"},
    )
    work = folder / ("work " + text.replace("/", "_").replace("\n", "_")[:60])
    work.mkdir()
    place = place_in(folder, stubs, workdir=work, output_dir=work / "runs")
    done = run_script(render_job_script(spec, make_site(), place), stubs)
    assert done.stderr == ""
    (call,) = stubs.calls()
    assert call["argv"] == [*TRAINING_OPTIONS, *launched(stubs), *spec.command]
    assert {name: call["env"][name] for name in spec.env} == spec.env
    assert call["env"]["CARRIED"] == text
    assert call["cwd"] == str(work)
    record = json.loads((work / "runs/cnn-4711/run.json").read_text())
    assert record["spec"]["command"] == list(spec.command)
    assert {path.name for path in work.iterdir()} == {"runs"}
    assert {path.name for path in folder.iterdir()} == {
        "bin",
        "calls.jsonl",
        "slurm_script",
        work.name,
    }


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_value_is_only_a_value(tmp_path: Path, value: str) -> None:
    assert_carried_unchanged(tmp_path, [value])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(
            st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=8
        )
        | st.sampled_from(HOSTILE),
        max_size=3,
    )
)
def test_any_value_is_only_a_value(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    assert_carried_unchanged(tmp_path_factory.mktemp("job"), values)


def test_hostile_option_values_reach_srun_as_one_word(stubs: Stubs) -> None:
    spec = make_spec(srun_extra=["--comment=$(touch pwned) '\"`x`"])
    run_script(script_for(stubs, spec), stubs)
    assert stubs.calls()[0]["argv"][3] == "--comment=$(touch pwned) '\"`x`"


def test_collect_takes_every_folder_of_its_job_and_no_other(stubs: Stubs, tmp_path: Path) -> None:
    mine = ["cnn-4711", "cnn-4711-r1", "cnn-4711-a0", "cnn-4711-r2-a13"]
    for name in [*mine, "cnn-47112", "cnn-4711-collect", "cnn-4711-99"]:
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs/cnn-4711-a9.log").write_text("a log, no folder")
    place = place_in(tmp_path, stubs)
    script = render_collect_script(make_spec(), make_site(), place, "4711")
    done = run_script(script, stubs)
    assert done.returncode == 0
    assert sorted(stubs.log.read_text().splitlines()) == sorted(
        str(tmp_path / "runs" / name) for name in mine
    )
    assert run_script(script, stubs, STUB_EXIT="3").returncode == 3


def test_collect_says_when_the_job_left_nothing(stubs: Stubs, tmp_path: Path) -> None:
    place = place_in(tmp_path, stubs)
    done = run_script(render_collect_script(make_spec(), make_site(), place, "4711"), stubs)
    assert done.returncode == 3
    assert f"left no run folder {tmp_path}/runs/cnn-4711 (its log says why)" in done.stderr
