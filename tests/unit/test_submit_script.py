"""Job scripts as text: whole-file comparison, and that no value changes their shape.

After an intended change: HPCPROF_WRITE_GOLDEN=1 pytest tests/unit/test_submit_script.py, then
read the difference.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from hpcprof.errors import UsageError
from hpcprof.site_config import Site, load_site
from hpcprof.submit.placement import Placement
from hpcprof.submit.script import render_collect_script, render_job_script, render_starter_spec
from tests.unit.slurm_stubs import make_site, make_spec

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("golden")
PLACE = Placement(
    Path("/scratch/me/hpcprof"), Path("/home/me/train"), "/home/me/hpcprof/bin/python", "1.2.3"
)


@pytest.fixture(autouse=True)
def no_user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def assert_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("HPCPROF_WRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; see the head of this file"
    assert text == path.read_text(encoding="utf-8")


def assert_valid_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def full_site() -> Site:
    return make_site(
        name="full",
        slurm={
            "account_required": True,
            "default_partition": "gpu",
            "srun": {"mpi": "pmix", "cpu_bind": "cores", "extra": ["--kill-on-bad-exit=0"]},
            "sbatch_extra": ["--exclusive"],
        },
        modules={"load": ["cuda/12.4", "openmpi"], "profile_load": ["nsight-systems"]},
        env={"set": {"NCCL_DEBUG": "WARN", "SHARED": "site"}},
        python={"activate": "source /sw/env.sh"},
        nsys={"path": "/opt/nsys/bin/nsys", "trace": ["cuda"], "extra": ["--backtrace=dwarf"]},
        profile_overlay={"sbatch": ["--constraint=perf"], "srun": ["--argos=no"]},
        collect={"partition": "cpu", "time": "30", "mem_gib": 64},
    )


def full_spec(**fields: object) -> object:
    return make_spec(
        **{
            "name": "image-cnn",
            "nodes": 4,
            "ranks_per_node": 8,
            "gpus_per_node": 8,
            "cpus_per_task": 12,
            "time": "1-12:00:00",
            "account": "proj@h100",
            "mem": "480G",
            "command": ["python", "train.py", "--name", 'it\'s "two" words', "$HOME"],
            "env": {"SHARED": "spec", "GREETING": "hello `id`\nworld"},
            "python": {"activate": "conda activate tf\nexport FROM_ACTIVATE=1"},
            "profile": {"profiler": "nsys", "ranks": "0-3", "extra": ["--sample=process-tree"]},
            "sbatch_extra": ["--qos=high", "--array=0-3"],
            "srun_extra": ["--comment=two words"],
            **fields,
        }
    )


def test_horovod_on_a_generic_site() -> None:
    script = render_job_script(make_spec(), load_site("generic-slurm"), PLACE)
    assert_valid_bash(script)
    assert_golden("horovod-generic.sbatch", script)


def test_multiworker_on_the_test_cluster() -> None:
    spec = make_spec(strategy="multiworker", nodes=2, ranks_per_node=2, gpus_per_node=2)
    script = render_job_script(spec, load_site("test-cluster"), PLACE)
    assert_valid_bash(script)
    assert_golden("multiworker-test-cluster.sbatch", script)


def test_every_field_of_spec_and_site() -> None:
    script = render_job_script(full_spec(), full_site(), PLACE)  # type: ignore[arg-type]
    assert_valid_bash(script)
    assert_golden("horovod-every-field.sbatch", script)


def test_collect_on_its_own_partition() -> None:
    script = render_collect_script(full_spec(), full_site(), PLACE, "4711")  # type: ignore[arg-type]
    assert_valid_bash(script)
    assert_golden("collect-every-field.sbatch", script)


def test_the_image_of_pyxis() -> None:
    container = {
        "runtime": "pyxis",
        "image": "nvcr.io#nvidia/tensorflow:24.01-tf2-py3",
        "mounts": ["/data", "/work:/inside:ro"],
        "python": "/usr/bin/python3.10",
        "extra": ["--container-mount-home"],
    }
    site = make_site(name="boxes", container={"mounts": ["/opt/nsys"]})
    script = render_job_script(make_spec(container=container, time="5"), site, PLACE)
    assert_valid_bash(script)
    assert_golden("horovod-pyxis.sbatch", script)


def test_starter_spec() -> None:
    assert_golden("starter.yaml", render_starter_spec("train", "horovod", "auto"))


def test_only_profiled_jobs_get_the_profiling_options() -> None:
    profiled = render_job_script(full_spec(), full_site(), PLACE)  # type: ignore[arg-type]
    plain = render_job_script(
        full_spec(profile={"profiler": "none"}),  # type: ignore[arg-type]
        full_site(),
        PLACE,
    )
    head, _, body = plain.partition("run.json")
    for text in ("--constraint=perf", "nsight-systems"):
        assert text in profiled.partition("run.json")[0]
        assert text not in head
    assert "  --argos=no \\\n" in profiled
    assert "  --argos=no \\\n" not in body


def header(**fields: object) -> str:
    """What is before the first command, with the site's own fields in ``site``."""
    site = make_site(**fields.pop("site", {}))  # type: ignore[arg-type]
    script = render_job_script(make_spec(**fields), site, PLACE)
    return script.partition("warn()")[0]


def test_the_flush_begins_when_the_spec_says() -> None:
    assert "#SBATCH --time=10\n#SBATCH --signal=B:USR1@240\n" in header()
    assert "\n#SBATCH --signal=B:USR1@600\n" in header(time="1:00:00", profile={"flush_s": 600})
    assert "the flush begins" not in header()


@pytest.mark.parametrize(("time", "seconds"), [("1", 30), ("4", 120), ("7", 210), ("1:30", 45)])
def test_a_short_job_is_recorded_for_half_of_its_time(time: str, seconds: int) -> None:
    text = header(time=time)
    assert f"\n#SBATCH --signal=B:USR1@{seconds}\n" in text
    assert f"\n# the flush begins {seconds} s before the time limit, at its half, not 240 s" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"profile": {"flush_s": 0}},
        {"profile": {"profiler": "none"}},
        {"sbatch_extra": ["--signal=B:TERM@300"]},
        {"site": {"slurm": {"sbatch_extra": ["--signal=B:USR1@300"]}}},
        {"site": {"profile_overlay": {"sbatch": ["--sig=B:USR1@300"]}}},
    ],
)
def test_no_signal_is_asked_for_twice_or_for_nothing(fields: dict[str, object]) -> None:
    asked = [line for line in header(**fields).splitlines() if "--sig" in line]
    assert asked == [line for line in asked if line.endswith("@300")]
    assert len(asked) <= 1
    assert "B:USR1@" not in header(**{**fields, "sbatch_extra": ["--signal=B:TERM@300"]}).replace(
        "B:USR1@300", ""
    )


def test_a_signal_of_an_overlay_that_is_left_out_asks_for_nothing() -> None:
    site = {"profile_overlay": {"sbatch": ["--signal=B:USR1@300"]}}
    assert "--signal" not in header(site=site, profile={"profiler": "none"})


def test_ones_own_signal_still_ends_the_recordings() -> None:
    spec = make_spec(sbatch_extra=["--signal=B:USR1@600"])
    assert "trap finish_recordings USR1" in render_job_script(spec, make_site(), PLACE)
    for profile in ({"profiler": "none"}, {"flush_s": 0}):
        script = render_job_script(make_spec(profile=profile), make_site(), PLACE)
        assert "flush" not in script.partition("END_OF_RUN_JSON\n)")[2]


def test_apptainer_stands_between_launch_and_the_command() -> None:
    container = {"runtime": "apptainer", "image": "my image.sif", "mounts": ["/data"]}
    site = make_site(container={"mounts": ["/scratch:/scratch:ro"]})
    script = render_job_script(make_spec(container=container, gpus_per_node=2), site, PLACE)
    assert (
        '  "${launcher[@]}" \\\n'
        "  apptainer exec --nv --bind=/scratch:/scratch:ro --bind=/data 'my image.sif' train &\n"
    ) in script
    container = {"runtime": "singularity", "image": "a.sif", "extra": ["--cleanenv"]}
    script = render_job_script(make_spec(container=container), make_site(), PLACE)
    assert "  singularity exec --cleanenv a.sif train &\n" in script
    container = {"runtime": "apptainer", "image": "a.sif", "extra": ["--rocm"]}
    script = render_job_script(make_spec(container=container, gpus_per_node=2), make_site(), PLACE)
    assert "  apptainer exec --rocm a.sif train &\n" in script


def test_pyxis_refuses_folders_that_it_cannot_mount(tmp_path: Path) -> None:
    spec = make_spec(container={"runtime": "pyxis", "image": "x"})
    place = dataclasses.replace(PLACE, output_dir=Path("/scratch/a,b"))
    with pytest.raises(UsageError, match="output_dir: /scratch/a,b cannot be mounted"):
        render_job_script(spec, make_site(), place)
    render_job_script(make_spec(), make_site(), place)


def test_collect_goes_where_the_training_went_when_the_site_says_nothing() -> None:
    spec = make_spec(partition="a100")
    assert "#SBATCH --partition=a100\n" in render_collect_script(spec, make_site(), PLACE, "1")
    site = make_site(collect={"partition": "cpu"})
    assert "#SBATCH --partition=cpu\n" in render_collect_script(spec, site, PLACE, "1")
    header = render_collect_script(make_spec(), make_site(), PLACE, "1")
    assert "--partition" not in header


def test_site_that_needs_an_account_says_so() -> None:
    site = make_site(slurm={"account_required": True})
    with pytest.raises(UsageError, match="site here charges every job to an account"):
        render_job_script(make_spec(), site, PLACE)
    script = render_job_script(make_spec(account="p1"), site, PLACE)
    assert "#SBATCH --account=p1\n" in script


@pytest.mark.parametrize(
    "value",
    ["x\n#SBATCH --nodes=99", "x --nodes=99", "x #", "x'", 'x"', "x\\", "x\r", "x\u2028y", "x\0"],
)
@pytest.mark.parametrize("field", ["account", "partition", "time", "mem"])
def test_no_value_of_the_header_can_hold_a_second_option(field: str, value: str) -> None:
    # past the checks of the model, as a caller of the library could
    spec = make_spec().model_copy(update={field: value})
    with pytest.raises(UsageError, match="cannot be written into a job script"):
        render_job_script(spec, make_site(), PLACE)


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("sbatch_extra of the job spec", {"sbatch_extra": ["--signal=USR1@60"]}),
        ("srun_extra of the job spec", {"srun_extra": ["./evil"]}),
        ("srun_extra of the job spec", {"srun_extra": ["--wait=60"]}),
        (
            "container.extra of the job spec",
            {"container": {"runtime": "pyxis", "image": "x", "extra": ["-W60"]}},
        ),
        ("profile.extra of the job spec", {"profile": {"extra": ["--kill=none"]}}),
        ("profile.extra of the job spec", {"profile": {"extra": ["-cnvtx"], "steps": "2-9"}}),
        (
            "container.extra of the job spec",
            {"container": {"runtime": "apptainer", "image": "x", "extra": ["evil"]}},
        ),
        (
            "container.extra of the job spec",
            {"container": {"runtime": "pyxis", "image": "x", "extra": ["--container-image=y"]}},
        ),
    ],
)
def test_refused_option_names_its_field(where: str, fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"^{where}: "):
        render_job_script(make_spec(**fields), make_site(), PLACE)


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("slurm.sbatch_extra of site here", {"slurm": {"sbatch_extra": ["--signal=USR1"]}}),
        ("slurm.srun.extra of site here", {"slurm": {"srun": {"extra": ["--export=NONE"]}}}),
        ("slurm.srun.extra of site here", {"slurm": {"srun": {"extra": ["--wait=60"]}}}),
        ("profile_overlay.srun of site here", {"profile_overlay": {"srun": ["-W60"]}}),
        ("profile_overlay.sbatch of site here", {"profile_overlay": {"sbatch": ["-N2"]}}),
        ("profile_overlay.srun of site here", {"profile_overlay": {"srun": ["--signal=2"]}}),
        ("nsys.extra of site here", {"nsys": {"extra": ["--duration=5"]}}),
    ],
)
def test_refused_option_names_its_site(where: str, fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"^{where}: "):
        render_job_script(make_spec(), make_site(**fields), PLACE)
