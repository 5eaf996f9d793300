"""Job scripts as text: whole-file comparison, and that no value changes their shape.

After an intended change: HPCPROF_WRITE_GOLDEN=1 pytest tests/unit/test_submit_script.py, then
read the difference.
"""

from __future__ import annotations

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
        ("profile.extra of the job spec", {"profile": {"extra": ["--kill=none"]}}),
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
        ("profile_overlay.sbatch of site here", {"profile_overlay": {"sbatch": ["-N2"]}}),
        ("profile_overlay.srun of site here", {"profile_overlay": {"srun": ["--signal=2"]}}),
        ("nsys.extra of site here", {"nsys": {"extra": ["--duration=5"]}}),
    ],
)
def test_refused_option_names_its_site(where: str, fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"^{where}: "):
        render_job_script(make_spec(), make_site(**fields), PLACE)
