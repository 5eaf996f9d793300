"""Submitting: what sbatch is given, what comes back, and what is said when Slurm says no."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.errors import EnvironmentLacksError, InputError, UsageError
from hpcprof.submit.slurm import JobId, cluster_name, sbatch
from hpcprof.submit.submission import Submission, generate, init, submit
from tests.unit.slurm_stubs import Stubs, install_stubs, write_program

pytestmark = pytest.mark.unit

SPEC = """\
name: cnn
strategy: horovod
site: generic-slurm
time: 10
command: train
"""

Submit = Callable[..., Submission]


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return install_stubs(tmp_path)


@pytest.fixture
def submit_spec(tmp_path: Path, stubs: Stubs) -> Submit:
    """Submits SPEC plus some lines from the folder ``work``, with stubs on PATH."""

    def run(more: str = "", **environ: str) -> Submission:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        spec = work / "hpcprof.yaml"
        interpreter = f"python: {{interpreter: {stubs.bin}/hpcprof-python}}\n"
        spec.write_text(SPEC + interpreter + more)
        return submit(spec, stubs.environ(**environ))

    return run


def test_training_and_dependent_collect_are_submitted(
    submit_spec: Submit, stubs: Stubs, tmp_path: Path
) -> None:
    done = submit_spec()
    runs = tmp_path / "work/hpcprof-runs"
    assert done == Submission(
        job_id="4711",
        run_dir=runs / "cnn-4711",
        log=runs / "cnn-4711.log",
        collect_id="4712",
        collect_log=runs / "cnn-4711-collect.log",
        collect_problem="",
    )
    assert runs.is_dir()
    training, collect = stubs.calls()
    assert training["argv"] == ["--parsable", f"--output={runs}/cnn-%j.log", "--open-mode=append"]
    assert training["directives"][0] == "--job-name=cnn"
    assert training["script"] == generate(tmp_path / "work/hpcprof.yaml", stubs.environ())
    assert collect["argv"] == [
        "--parsable",
        f"--output={runs}/cnn-4711-collect.log",
        "--dependency=afterany:4711",
    ]
    assert f"first={runs}/cnn-4711\n" in collect["script"]


def test_collect_can_be_declined(submit_spec: Submit, stubs: Stubs) -> None:
    done = submit_spec("collect: no\n")
    assert (done.collect_id, done.collect_log, done.collect_problem) == (None, None, "")
    assert len(stubs.calls()) == 1


def test_refused_collect_does_not_hide_the_submitted_training(
    submit_spec: Submit, stubs: Stubs
) -> None:
    done = submit_spec(STUB_REFUSE="1:Invalid partition name specified")
    assert (done.job_id, done.collect_id) == ("4711", None)
    assert "Slurm says: sbatch: error: Invalid partition name" in done.collect_problem
    assert len(stubs.calls()) == 1


def test_collect_goes_to_the_cluster_that_took_the_training(
    submit_spec: Submit, stubs: Stubs
) -> None:
    done = submit_spec(STUB_ANSWER="Welcome to the big one!\n{};big")
    assert (done.job_id, done.collect_id) == ("4711", "4712")
    assert stubs.calls()[1]["argv"][-1] == "--clusters=big"


def test_percent_in_the_output_folder_is_not_a_pattern_of_slurm(
    submit_spec: Submit, stubs: Stubs, tmp_path: Path
) -> None:
    done = submit_spec("output_dir: out 50%j\n")
    assert done.log == tmp_path / "work/out 50%j/cnn-4711.log"
    assert f"--output={tmp_path}/work/out 50%%j/cnn-%j.log" in stubs.calls()[0]["argv"]


@pytest.mark.parametrize(
    ("slurm_says", "next_step"),
    [
        ("Batch job submission failed: Invalid account or account/partition", "account: must be"),
        ("invalid partition specified: gpux", "sinfo -s"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time: must fit"),
        ("Requested node configuration is not available", "lower ranks_per_node:"),
        ("Invalid generic resource (gres) specification", "set it to 0 and write the site's form"),
    ],
)
def test_refusal_has_slurms_words_and_a_next_step(
    submit_spec: Submit, stubs: Stubs, slurm_says: str, next_step: str
) -> None:
    with pytest.raises(UsageError) as caught:
        submit_spec(STUB_REFUSE=f"0:{slurm_says}")
    assert f"Slurm refused the job. Slurm says: sbatch: error: {slurm_says}" in str(caught.value)
    assert next_step in str(caught.value)
    assert stubs.calls() == []


def test_unknown_option_is_traced_to_sbatch_extra(submit_spec: Submit) -> None:
    with pytest.raises(UsageError, match="sbatch_extra: holds an option that this Slurm"):
        submit_spec("sbatch_extra: [--no-such-thing=1]\n")


def test_unreachable_controller_is_no_fault_of_the_spec(submit_spec: Submit) -> None:
    with pytest.raises(EnvironmentLacksError, match="controller cannot be reached"):
        submit_spec(STUB_REFUSE="0:Unable to contact slurm controller (connect failure)")


def test_no_sbatch_is_said_in_words(submit_spec: Submit, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="sbatch is not on PATH"):
        submit_spec(PATH=str(tmp_path / "empty"))


def test_success_without_a_job_id_is_not_success(stubs: Stubs) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"no job id; it printed 'queued\.'"):
        sbatch("#!/bin/bash\n", [], stubs.environ(STUB_ANSWER="queued."))
    assert sbatch("#!/bin/bash\n", [], stubs.environ()) == JobId("4712")


def test_signal_from_the_environment_is_checked_like_an_option(
    submit_spec: Submit, stubs: Stubs
) -> None:
    with pytest.raises(UsageError, match=r"^SBATCH_SIGNAL in the environment: "):
        submit_spec(SBATCH_SIGNAL="USR1@60")
    assert submit_spec(SBATCH_SIGNAL="B:USR1@60").job_id == "4711"


def test_output_folder_that_cannot_be_made_is_named(submit_spec: Submit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"output_dir {tmp_path}/file/runs cannot be made"):
        submit_spec("output_dir: ../file/runs\n")


def test_interpreter_without_hpcprof_is_refused_before_anything_is_submitted(
    tmp_path: Path, stubs: Stubs
) -> None:
    other = write_program(tmp_path / "other-python", "#!/bin/bash\nexit 1\n")
    spec = tmp_path / "hpcprof.yaml"
    spec.write_text(SPEC + f"python: {{interpreter: {other}}}\n")
    with pytest.raises(EnvironmentLacksError, match="other-python cannot import hpcprof"):
        submit(spec, stubs.environ())
    assert stubs.calls() == []


def test_interpreter_that_only_compute_nodes_have_is_let_pass(tmp_path: Path, stubs: Stubs) -> None:
    spec = tmp_path / "hpcprof.yaml"
    spec.write_text(SPEC + "python: {interpreter: /nonexistent/python}\n")
    assert submit(spec, stubs.environ()).job_id == "4711"


def test_generate_writes_nothing_and_names_this_interpreter(tmp_path: Path, stubs: Stubs) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "hpcprof.yaml").write_text(SPEC)
    script = generate(work / "hpcprof.yaml", stubs.environ())
    assert f"\nHPCPROF_PYTHON={sys.executable}\n" in script
    assert [path.name for path in work.iterdir()] == ["hpcprof.yaml"]


def test_site_in_the_spec_is_found_beside_the_spec(tmp_path: Path, stubs: Stubs) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nslurm: {sbatch_extra: [--exclusive]}\n")
    spec = tmp_path / "hpcprof.yaml"
    spec.write_text(SPEC.replace("generic-slurm", "own.yaml"))
    assert "#SBATCH --exclusive\n" in generate(spec, stubs.environ())


def test_cluster_name_is_asked_of_slurm(tmp_path: Path, stubs: Stubs) -> None:
    assert cluster_name(stubs.environ()) == "stubs"
    assert cluster_name(stubs.environ(SLURM_CLUSTER_NAME="told")) == "told"
    assert cluster_name({"PATH": str(tmp_path / "empty")}) is None


def test_starter_spec_is_accepted_as_it_is(tmp_path: Path, stubs: Stubs) -> None:
    for strategy in ("horovod", "multiworker"):
        path = tmp_path / f"{strategy}.yaml"
        init(path, strategy=strategy)
        script = generate(path, stubs.environ())
        assert "python train.py &\n" in script
        assert ("HPCPROF_HOSTS" in script) == (strategy == "multiworker")


def test_starter_spec_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "hpcprof.yaml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="will not be overwritten without --force"):
        init(path, strategy="horovod")
    assert path.read_text() == "mine"
    init(path, strategy="horovod", force=True)
    assert "strategy: horovod" in path.read_text()
    with pytest.raises(InputError, match="no site 'nowhere'"):
        init(tmp_path / "new.yaml", strategy="horovod", site="nowhere")
    with pytest.raises(InputError, match="cannot be written"):
        init(tmp_path / "none/new.yaml", strategy="horovod")
