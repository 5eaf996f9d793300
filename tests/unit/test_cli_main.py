"""The command line: verbs, help, messages, exit codes; that it loads little."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpcprof import __version__
from hpcprof.cli import main as cli
from hpcprof.doctor.diagnosis import Diagnosis, Line
from hpcprof.doctor.row import Row
from hpcprof.errors import EnvironmentLacksError, InputError, UsageError
from tests.unit.slurm_stubs import Stubs, install_stubs

pytestmark = pytest.mark.unit

SPEC = "name: cnn\nstrategy: horovod\nsite: generic-slurm\ntime: 10\ncommand: train\n"


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Stubs on PATH, and the current folder a fresh one with a job spec."""
    stubs = install_stubs(tmp_path)
    for name, value in stubs.environ().items():
        monkeypatch.setenv(name, value)
    for name in ("SCRATCH", "PSCRATCH", "CINECA_SCRATCH", "SBATCH_SIGNAL"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "my work"
    work.mkdir()
    monkeypatch.chdir(work)
    interpreter = f"python: {{interpreter: {stubs.bin}/hpcprof-python}}\n"
    (work / "hpcprof.yaml").write_text(SPEC + interpreter)
    return stubs


@pytest.mark.parametrize("verb", cli.VERBS, ids=lambda verb: verb.name)
def test_every_listed_verb_exists_and_says_what_the_list_says(verb: cli.Verb) -> None:
    command = getattr(importlib.import_module(verb.module), verb.function)
    assert isinstance(command, click.Command)
    assert command.name == verb.name
    assert (command.help or "").splitlines()[0] == verb.summary


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for verb in cli.VERBS:
        assert f"  {verb.name} " in printed
        assert verb.summary in " ".join(printed.split())


def test_help_and_job_scripts_load_no_analysis_packages() -> None:
    code = (
        "import sys; from hpcprof.cli.main import main; main(['--help']);"
        "import hpcprof.submit.submission;"
        "print(sorted({'pandas', 'numpy', 'pyarrow', 'tensorflow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hpcprof {__version__}\n"


@pytest.mark.parametrize("argv", [["genrate"], ["generate"], ["generate", "a", "b"], ["--nope"]])
def test_wrong_usage_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert "Usage: hpcprof" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u"), 2),
        (InputError("i"), 3),
        (EnvironmentLacksError("e"), 4),
        (FileNotFoundError(2, "No such file", "x"), 3),
    ],
)
def test_each_error_has_its_exit_code_and_one_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("hpcprof.submit.submission.generate", fail)
    assert cli.main(["generate", "x.yaml"]) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"hpcprof: {error}\n")


def test_verb_can_return_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    verb = cli.Verb("odd", "tests.unit.test_cli_main", "odd_verb", "Return 1.")
    monkeypatch.setattr(cli, "VERBS", (verb,))
    assert cli.main(["odd"]) == 1
    assert cli.main(["odd", "--exit"]) == 5


@click.command(name="odd")
@click.option("--exit", "exits", is_flag=True)
@click.pass_context
def odd_verb(ctx: click.Context, *, exits: bool) -> int:
    """Return 1."""
    if exits:
        ctx.exit(5)
    return 1


def test_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = cli.Verb("odd", "no_such_package.verb", "odd", "Odd.")
    monkeypatch.setattr(cli, "VERBS", (verb,))
    assert cli.main(["--help"]) == 0
    assert cli.main(["odd"]) == 4
    assert "hpcprof odd needs the Python package no_such_package" in capsys.readouterr().err


def test_init_generate_and_submit_work_together(
    stubs: Stubs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", "--strategy", "multiworker", "-o", "new.yaml"]) == 0
    assert capsys.readouterr().out == (
        "new.yaml written; set command: and time:, then: hpcprof submit new.yaml\n"
    )
    assert cli.main(["init", "-o", "new.yaml"]) == 2
    assert "will not be overwritten without --force" in capsys.readouterr().err
    assert cli.main(["generate", "new.yaml", "-o", "job.sbatch"]) == 0
    assert capsys.readouterr().out == "job.sbatch written; submit it with: sbatch job.sbatch\n"
    assert cli.main(["generate", "new.yaml"]) == 0
    assert capsys.readouterr().out == Path("job.sbatch").read_text()


def test_submit_says_where_everything_is(
    stubs: Stubs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "hpcprof.yaml"]) == 0
    runs = tmp_path / "my work/hpcprof-runs"
    assert capsys.readouterr().out.splitlines() == [
        "job         4711",
        f"run folder  {runs}/cnn-4711",
        f"log         {runs}/cnn-4711.log",
        f"analysis    job 4712, log {runs}/cnn-4711-collect.log",
        f"verdict     hpcprof report '{runs}/cnn-4711'   when job 4712 ends",
    ]


def test_submit_says_what_to_do_when_the_analysis_was_refused(
    stubs: Stubs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STUB_REFUSE", "1:Invalid partition name specified")
    assert cli.main(["submit", "hpcprof.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "job         4711"
    assert "analysis" not in printed.out
    assert "the training is submitted, but not its analysis: Slurm refused the job" in printed.err
    assert f"hpcprof collect '{tmp_path}/my work/hpcprof-runs/cnn-4711'" in printed.err


def test_submit_without_slurm_is_exit_code_4(
    stubs: Stubs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert cli.main(["submit", "hpcprof.yaml"]) == 4
    assert "sbatch is not on PATH" in capsys.readouterr().err


ROWS = (Line(Row("nsys", "FAIL", "broken", "Mend it.")), Line(Row("clock", "OK", "tsc")))


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, dict[str, object]]]:
    """Calls of the doctor's library, which finds ``ROWS``."""
    calls: list[tuple[object, dict[str, object]]] = []

    def diagnose(spec: object, **options: object) -> Diagnosis:
        calls.append((spec, options))
        return Diagnosis("login1", str(spec or ""), "here", ROWS, (), asked_nodes=False)

    monkeypatch.setattr("hpcprof.cli.doctor.diagnose", diagnose)
    return calls


def test_doctor_prints_a_table_and_fails_when_something_fails(
    stubs: Stubs,
    diagnosed: list[tuple[object, dict[str, object]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor"]) == 4
    printed = capsys.readouterr()
    assert printed.out.startswith("hpcprof doctor: 1 FAIL, 1 OK\n")
    assert printed.err == ""
    assert diagnosed[0][0] == Path("hpcprof.yaml")  # the one in this folder


def test_doctor_as_json(
    stubs: Stubs,
    diagnosed: list[tuple[object, dict[str, object]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "other.yaml", "--format", "json"]) == 4
    record = json.loads(capsys.readouterr().out)
    assert record["counts"] == {"FAIL": 1, "WARN": 0, "NOT CHECKED": 0, "OK": 1}
    assert record["rows"][0]["advice"] == "Mend it."
    assert diagnosed[0][0] == Path("other.yaml")


def test_doctor_passes_options_behind_the_dashes_to_srun(
    stubs: Stubs,
    diagnosed: list[tuple[object, dict[str, object]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "--srun", "a.yaml", "--wait=9", "--", "--nodelist=n1"]) == 4
    spec, options = diagnosed[0]
    assert (spec, options["srun"], options["wait_s"]) == (Path("a.yaml"), True, 9)
    assert options["srun_extra"] == ("--nodelist=n1",)
    assert cli.main(["doctor", "a.yaml", "b.yaml"]) == 2
    assert "of use with --srun only" in capsys.readouterr().err
