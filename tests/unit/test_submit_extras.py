"""Options added by hand: which are refused, and that the reason is said."""

from __future__ import annotations

import pytest

from hpcprof.errors import UsageError
from hpcprof.submit.extras import (
    check_container,
    check_pyxis,
    check_sbatch,
    check_srun,
    directive,
    has_signal,
)
from hpcprof.submit.nsys_extras import check_nsys

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
    assert has_signal(["--exclusive", option])


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--container-image=x", "Use container: in the job spec"),
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
    assert not has_signal([option])


@pytest.mark.parametrize("option", ["constraint=gpu", "./evil", "--", "-", "-C gpu", "--x y=1"])
def test_what_is_not_one_option_is_refused(option: str) -> None:
    for check in (check_sbatch, check_srun):
        with pytest.raises(UsageError, match="write it as --name=value"):
            check([option], "extra")


@pytest.mark.parametrize(
    "option",
    [
        *("-N2", "--export=NONE", "--multi-prog", "--signal=USR1", "--signal=B:USR1", "-t5"),
        *("--time=5", "--container-image=x", "--container-name=x", "--container-mounts=/a:/a"),
    ],
)
def test_srun_options_that_would_break_recording_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"^srun_extra: "):
        check_srun([option], "srun_extra")


@pytest.mark.parametrize("option", ["--wait=60", "--wa=0", "-W60", "-W"])
def test_no_rank_is_ended_while_its_report_is_written(option: str) -> None:
    for check in (check_srun, check_pyxis):
        with pytest.raises(UsageError, match=r"^extra: .* what nsys is still writing is lost"):
            check([option], "extra", profiled=True)
        check([option], "extra", profiled=False)
        check(["--kill-on-bad-exit=1", "--wait-for-children"], "extra", profiled=True)


@pytest.mark.parametrize("option", ["--export=NONE", "--signal=USR1", "--container-image=x", "x"])
def test_what_pyxis_hands_to_srun_is_checked_as_options_of_srun(option: str) -> None:
    with pytest.raises(UsageError, match=r"^container\.extra: "):
        check_pyxis([option], "container.extra", profiled=False)
    check_pyxis(["--container-mount-home"], "container.extra", profiled=True)


def test_srun_option_with_a_space_in_its_value_passes() -> None:
    check_srun(["--comment=two words", "--gpu-bind=none", "-l"], "srun_extra")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--duration=60", "nsys ends, or ends the training"),
        ("-d60", "nsys ends, or ends the training"),
        ("--dur=60", "nsys ends, or ends the training"),  # nsys takes an unambiguous beginning
        ("--duration-frames=60", "ends the training after so many frames"),
        ("--delay=5", "another step; use steps:"),
        ("-y5", "another step; use steps:"),
        ("--kill=none", "Slurm then kills the training"),
        ("--ki=none", "Slurm then kills the training"),
        ("--stop-on-exit=false", "the job would not end"),
        ("-xfalse", "the job would not end"),
        ("--wait=all", "keep the job"),
        ("--start-later=true", "nothing would ever start the recording"),
        ("--start-agent", "nsys's own"),
        ("--session-new=mine", "with equal ones no training starts"),
        ("--session=mine", "with equal ones no training starts"),
        ("--sess=mine", "with equal ones no training starts"),
        ("-ftrue", "overwrite each other's report"),
        ("--force-overwrite=true", "overwrite each other's report"),
        ("-oreport", "names the report of each rank"),
        ("--output=report", "names the report of each rank"),
        ("--trace=cuda", "use trace:"),
        ("-tcuda", "use trace:"),
        ("--inherit-environment=false", "lose its environment"),
        ("-nfalse", "lose its environment"),
        ("--env-var=A=1", "use env:"),
        ("--run-as=root", "as somebody else"),
        ("--command-file=mine", "could not be checked"),
        ("--help", "not start the training"),
    ],
)
def test_nsys_options_that_would_harm_training_or_report_are_refused(
    option: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=r"^profile\.extra: .* cannot be given here: ") as caught:
        check_nsys(["--sample=none", option], "profile.extra")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "words", [["-x", "true"], ["--kill", "none"], ["-d", "60"], ["--delay", "5"], ["-f", "true"]]
)
def test_nsys_option_in_two_words_is_refused_as_in_one(words: list[str]) -> None:
    with pytest.raises(UsageError, match=f"^profile.extra: {words[0]} cannot be given here: "):
        check_nsys(words, "profile.extra")
    with pytest.raises(UsageError, match=r"holds a space; write it as --name=value"):
        check_nsys([" ".join(words)], "profile.extra")


@pytest.mark.parametrize(
    "value", ["stop-shutdown", "repeat:3", "repeat", "repeat-shutdown:2", "none", ""]
)
def test_only_a_range_that_leaves_training_and_one_report_may_end(value: str) -> None:
    for words in ([f"--capture-range-end={value}"], ["--capture-range-end", value or "-l"]):
        with pytest.raises(UsageError, match=r"Only --capture-range-end=stop does both"):
            check_nsys(["--capture-range=nvtx", *words], "profile.extra")
    check_nsys(["-c", "nvtx", "--capture-range-end=stop"], "profile.extra")
    check_nsys(["--capture-range=nvtx", "--capture-range-end", "stop"], "profile.extra")


@pytest.mark.parametrize("option", ["-cnvtx", "--capture-range=nvtx", "--nvtx-capture=a@b", "-pa"])
def test_a_range_of_ones_own_contradicts_the_steps_of_the_spec(option: str) -> None:
    check_nsys([option], "profile.extra")
    with pytest.raises(UsageError, match="steps: under profile: says what is recorded"):
        check_nsys([option], "profile.extra", steps="20-59")


def test_a_variable_in_a_report_name_is_refused() -> None:
    for words in (["--x=report-%q{SLURM_PROCID}"], ["--x", "%q{RANK}"]):
        with pytest.raises(UsageError, match="ranks would share one name"):
            check_nsys(words, "profile.extra")


@pytest.mark.parametrize("words", [["./evil"], ["--sample=none", "dwarf"], ["-s", "none", "evil"]])
def test_a_word_that_nsys_would_start_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="nsys would start it in the place of the training"):
        check_nsys(words, "profile.extra")


@pytest.mark.parametrize("words", [["--backtrace"], ["-b"], ["--backtrace", "--sample=none"]])
def test_an_option_that_would_swallow_the_command_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="has no value; nsys would take the next word"):
        check_nsys(words, "profile.extra")
    with pytest.raises(UsageError, match="is not an option"):
        check_nsys(["--"], "profile.extra")


def test_nsys_options_with_separate_values_pass() -> None:
    check_nsys(["--sample=process-tree", "--backtrace", "dwarf", "-bfp"], "profile.extra")


@pytest.mark.parametrize(
    "option", ["--container-image=x", "--container-mounts=/a:/a", "--container-workdir=/", "x"]
)
def test_container_options_that_the_spec_has_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"^container\.extra: "):
        check_container([option], "container.extra")
    check_container(["--cleanenv", "-B/data", "--container-mount-home"], "container.extra")


@pytest.mark.parametrize("character", list(" \t\n\r\v\f\0\x1b\x85\u2028\u00a0\"'\\#"))
def test_directive_refuses_what_would_end_a_word(character: str) -> None:
    with pytest.raises(UsageError, match="cannot be written into a job script"):
        directive(f"--comment=a{character}b")
