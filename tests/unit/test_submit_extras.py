"""Options added by hand: which are refused, and that the reason is said."""

from __future__ import annotations

import pytest

from hpcprof.errors import UsageError
from hpcprof.submit.extras import check_nsys, check_sbatch, check_srun, directive

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "option", ["--signal=USR1@300", "--signal=R:USR1", "--sig=10", "--signal", "--signal=@60"]
)
def test_signal_to_every_process_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="ends nsys, and the report is lost"):
        check_sbatch([option], "sbatch_extra")


@pytest.mark.parametrize("option", ["--signal=B:USR1@300", "--signal=b:TERM", "--signal=RB:12@60"])
def test_signal_to_the_batch_shell_is_accepted(option: str) -> None:
    check_sbatch([option], "sbatch_extra")


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--nodes=4", "use nodes:"),
        ("--node=4", "use nodes:"),  # getopt takes an unambiguous beginning
        ("-N4", "use nodes:"),
        ("-J", "use name:"),
        ("--ntasks-per-node=8", "use ranks_per_node:"),
        ("-o/tmp/x", "says where the log is"),
    ],
)
def test_what_the_spec_says_is_not_said_again(option: str, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        check_sbatch([option], "sbatch_extra")


@pytest.mark.parametrize(
    "option", ["--constraint=gpu&nvme", "-Cgpu", "--no-requeue", "--nodelist=n[1-4]", "--array=0-3"]
)
def test_other_options_pass(option: str) -> None:
    check_sbatch([option], "sbatch_extra")
    assert directive(option) == option


@pytest.mark.parametrize("option", ["constraint=gpu", "./evil", "--", "-", "-C gpu", "--x y=1"])
def test_what_is_not_one_option_is_refused(option: str) -> None:
    for check in (check_sbatch, check_srun):
        with pytest.raises(UsageError, match="write it as --name=value"):
            check([option], "extra")


@pytest.mark.parametrize(
    "option", ["-N2", "--export=NONE", "--multi-prog", "--signal=USR1", "--signal=B:USR1"]
)
def test_srun_options_that_would_break_recording_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"^srun_extra: "):
        check_srun([option], "srun_extra")


def test_srun_option_with_a_space_in_its_value_passes() -> None:
    check_srun(["--comment=two words", "--gpu-bind=none", "-l"], "srun_extra")


@pytest.mark.parametrize("option", ["--duration=60", "-d60", "--kill=none", "-o", "--trace=cuda"])
def test_nsys_options_that_would_end_the_training_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"^profile\.extra: "):
        check_nsys([option], "profile.extra")


def test_nsys_options_with_separate_values_pass() -> None:
    check_nsys(["--sample=process-tree", "--backtrace", "dwarf"], "profile.extra")


@pytest.mark.parametrize("character", list(" \t\n\r\v\f\0\x1b\x85\u2028\u00a0\"'\\#"))
def test_directive_refuses_what_would_end_a_word(character: str) -> None:
    with pytest.raises(UsageError, match="cannot be written into a job script"):
        directive(f"--comment=a{character}b")
