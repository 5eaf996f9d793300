"""A rank under nsys: the command line, the start, and what happens when nsys fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcprof.artifacts.rank_env import RankEnv
from hpcprof.errors import UsageError
from hpcprof.launch import nsys, nsys_command
from hpcprof.launch.nsys_rank import session_name
from hpcprof.launch.selection import is_selected
from tests.unit import launching

pytestmark = pytest.mark.unit

WANTED = ["cuda", "nvtx", "osrt", "mpi"]
# what more of them is needed to see which options nsys would take
MORE_HELP = "\n".join(
    f"\t{option}=\n"
    for option in (
        *("--capture-range-end", "--cuda-um-cpu-page-faults", "--cuda-um-gpu-page-faults"),
        *("--mpi-impl", "--nvtx-domain-[include|exclude]", "-p, --nvtx-capture"),
        *("--sampling-period", "-w, --show-output"),
    )
)
HELP = launching.NSYS_HELP_2022 + MORE_HELP
NEWER_HELP = launching.NSYS_HELP_2022.replace("'openmp' or", "'python-gil', 'syscall' or")
# starts the application, writes a report, and returns the application's code
GOOD = 'echo "NSYS_ENV $TMPDIR $NSYS_HW_ID $NSYS_NVTX_PROFILER_REGISTER_ONLY"; "$@"; code=$?; '
GOOD += 'echo "Generating"; echo report > "$report"; exit $code'


def build(help_text: str = launching.NSYS_HELP_2022) -> nsys.NsysBuild:
    return nsys.parse_help("/n/nsys", "NVIDIA Nsight Systems version 2022.4.2.1-df9881f", help_text)


def test_the_help_text_tells_version_kinds_and_options() -> None:
    found = build()

    assert found.version == "2022.4.2.1"
    assert list(found.trace_kinds) == [
        *("cuda", "nvtx", "cublas", "cublas-verbose", "mpi", "ucx", "osrt", "openmp"),
    ]
    assert {"sample", "cpuctxsw", "wait", "trace", "session-new"} <= set(found.options)
    assert list(build(NEWER_HELP).trace_kinds)[-2:] == ["python-gil", "syscall"]


def test_a_help_text_without_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="no trace kinds"):
        build("usage: something else")


@pytest.mark.parametrize(
    ("environ", "has_gpu", "expected"),
    [
        ({}, False, ["nvtx", "osrt"]),
        ({"PMIX_RANK": "0"}, False, ["nvtx", "osrt", "mpi"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, True, ["cuda", "nvtx", "osrt", "mpi"]),
    ],
)
def test_only_what_can_occur_is_traced(
    environ: dict[str, str], has_gpu: bool, expected: list[str]
) -> None:
    assert nsys.trace_kinds(build(), WANTED, environ, has_gpu=has_gpu) == expected


def test_an_unknown_trace_kind_is_not_asked_for() -> None:
    assert nsys.trace_kinds(build(), ["nvtx", "syscall"], {}, has_gpu=True) == ["nvtx"]
    assert nsys.trace_kinds(build(NEWER_HELP), ["nvtx", "syscall"], {}, has_gpu=True) == [
        *("nvtx", "syscall"),
    ]


def profile_argv(
    extra: list[str],
    *,
    stem: str = "/run/ranks/00003/rank",
    window: bool = False,
    help_text: str = HELP,
) -> tuple[list[str], list[str]]:
    commands, warnings = nsys_command.profile(
        build(help_text), Path(stem), ["nvtx", "osrt"], extra, window=window
    )
    return commands.run_argv("hpcprof-77-1-3"), warnings


def test_the_command_line_holds_only_known_options_and_a_literal_name() -> None:
    argv, warnings = profile_argv([], stem="/a %h/rank")

    assert warnings == []
    assert argv == [
        *("/n/nsys", "profile", "--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none"),
        *("--wait=primary", "-o", "/a %%h/rank", "--session-new=hpcprof-77-1-3"),
    ]
    without_wait = HELP.replace("--wait=", "--other=")
    assert "--wait=primary" not in profile_argv([], help_text=without_wait)[0]


def test_a_window_of_cuda_goes_on_after_its_end() -> None:
    argv, _ = profile_argv([], window=True)

    assert argv[argv.index("-o") + 2 : -1] == [
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    ]


@pytest.mark.parametrize(
    ("extra", "kept", "warned"),
    [
        (["--duration=30"], [], 1),
        (["-d", "30", "--kill", "none"], [], 2),
        (["-d30", "--dur=30", "--ki=none", "-xfalse"], [], 4),
        (["-cnvtx"], ["--capture-range-end=stop", "-cnvtx"], 0),
        (
            ["-c", "nvtx", "--capture-range-en=stop-shutdown"],
            ["--capture-range-end=stop", "-c", "nvtx"],
            1,
        ),
        (["-f", "true", "-o", "elsewhere"], [], 2),
        (["--capture-range=nvtx"], ["--capture-range-end=stop", "--capture-range=nvtx"], 0),
        (
            ["-c", "nvtx", "--capture-range-end=stop-shutdown"],
            ["--capture-range-end=stop", "-c", "nvtx"],
            1,
        ),
        (
            ["-c", "nvtx", "--capture-range-end=repeat:3"],
            ["-c", "nvtx", "--capture-range-end=repeat:3"],
            0,
        ),
        (
            ["-c", "nvtx", "--capture-range-end", "stop-shutdown"],
            ["--capture-range-end=stop", "-c", "nvtx"],
            1,
        ),
        (["--sample=process-tree"], ["--sample=process-tree"], 0),
        (["-s", "process-tree"], ["-s", "process-tree"], 0),
    ],
)
def test_options_that_end_the_training_are_left_out(
    extra: list[str], kept: list[str], warned: int
) -> None:
    argv, warnings = profile_argv(extra)

    assert argv[argv.index("-o") + 2 : -1] == kept
    assert len(warnings) == warned
    assert argv.count("--sample=none") == (0 if "process-tree" in " ".join(extra) else 1)


@pytest.mark.parametrize(
    ("extra", "quiet"),
    [
        (["--nvtx-domain-inc=a", "--show=false", "-p", "a@b"], ["sample", "cpuctxsw"]),
        (["--capture-range-end=stop", "-wfalse"], ["sample", "cpuctxsw"]),
        # the same option twice is refused, too
        (["--sample=process-tree", "--cpuctx=process-tree"], []),
        (["-sprocess-tree", "--sampling=1"], ["cpuctxsw"]),
    ],
)
def test_options_that_nsys_takes_are_kept(extra: list[str], quiet: list[str]) -> None:
    argv, warnings = profile_argv(extra)

    assert argv[argv.index("-o") + 2 : -1] == extra
    assert warnings == []
    assert [word for word in argv if word.endswith("=none")] == [f"--{name}=none" for name in quiet]


@pytest.mark.parametrize(
    "option",
    [
        *("--bogus=1", "-Z1", "--sam=none", "--sampler=1", "--cuda-um=true", "--nvtx=a"),
        *("--nvtx-dom=a", "--nvtx-domain-=a", "--t=cuda", "s", "evil"),
    ],
)
def test_options_that_nsys_would_refuse_do_not_cost_the_recording(option: str) -> None:
    argv, warnings = profile_argv([option, "--mpi-impl=mpich"])

    assert argv[argv.index("-o") + 2 : -1] == ["--mpi-impl=mpich"]
    assert warnings == [
        f"nsys option {option} was left out: this nsys would refuse it (nsys profile --help)"
    ]


def test_options_of_a_window_go_to_the_command_that_knows_them(tmp_path: Path) -> None:
    program = launching.fake_nsys(tmp_path / "fake", "exit 0")
    found = nsys.inspect_interactive(str(program), tmp_path)
    extra = ["-s", "process-tree", "--mpi-impl=mpich", "--nvtx-domain-include=a", "--delay", "3"]
    commands, warnings = nsys_command.interactive(
        build(), found, Path("/r/rank"), ["nvtx"], [*extra, "--duration=9"]
    )

    assert commands.run_argv("S") == [
        *("/n/nsys", "launch", "--trace=nvtx", "--wait=primary", "--mpi-impl=mpich"),
        *("--nvtx-domain-include=a", "--session-new=S"),
    ]
    assert commands.start_argv("S") == [
        *("/n/nsys", "start", "--cpuctxsw=none", "-o", "/r/rank", "-s", "process-tree"),
        "--session=S",
    ]
    assert commands.stop_argv("S") == ["/n/nsys", "stop", "--session=S"]
    assert warnings == [
        "nsys option --duration=9 was left out: it can end the training",
        "nsys option --delay 3 was left out: nsys has none such for a window",
    ]


def test_an_nsys_without_sessions_has_no_window() -> None:
    with pytest.raises(ValueError, match="no sessions"):
        nsys_command.interactive(
            build(), nsys.Interactive(["trace"], ["output"]), Path("/r/rank"), ["nvtx"], []
        )


def test_the_answer_of_nsys_is_kept_for_the_other_ranks(tmp_path: Path) -> None:
    program = launching.fake_nsys(tmp_path / "fake", "exit 0")
    first = nsys.inspect_nsys(str(program), tmp_path)
    second = nsys.inspect_nsys(str(program), tmp_path)
    assert first._replace(trace_kinds=(), options=()) == second._replace(trace_kinds=(), options=())
    assert list(first.trace_kinds) == list(second.trace_kinds)
    assert (tmp_path / "fake/calls").read_text().split("\n") == ["--version", "profile --help", ""]

    (tmp_path / "fake/calls").unlink()
    assert nsys.inspect_interactive(str(program), tmp_path) == nsys.Interactive(
        ["mpi-impl", "nvtx-domain-", "session-new", "t", "trace", "wait"],
        ["c", "capture-range", "cpuctxsw", "o", "output", "s", "sample", "session"],
    )
    nsys.inspect_interactive(str(program), tmp_path)
    assert (tmp_path / "fake/calls").read_text() == "launch --help\nstart --help\n"

    os.utime(program, (1, 1))  # another build in the same place
    nsys.inspect_nsys(str(program), tmp_path)
    assert len((tmp_path / "fake/calls").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        *(("all", True), ("none", False), ("3", True), ("0-2", False), ("0-2,3-5", True)),
        *(("local1", True), ("local0", False), ("node:n2", True), ("node:n1,4", False)),
    ],
)
def test_ranks_are_selected_by_number_place_or_node(selector: str, selected: bool) -> None:
    identity = RankEnv(3, 1, 8, "n2", "77", "0")
    assert is_selected(selector, identity) is selected


@pytest.mark.parametrize("selector", ["", "rank3", "3-", "all,x", "3-4-5"])
def test_a_malformed_selector_is_refused(selector: str) -> None:
    with pytest.raises(UsageError, match="profile_ranks"):
        is_selected(selector, RankEnv(3, 1, 8, "n2", "77", "0"))


def test_session_names_hold_job_step_and_rank() -> None:
    assert session_name(RankEnv(3, 1, 8, "n2", "77", "1")) == "hpcprof-77-1-3"
    outside = session_name(RankEnv(3, 1, 8, "n2", "", ""))
    assert outside == f"hpcprof-n2-{os.getpid()}-3"


def start(tmp_path: Path, behaviour: str, command: list[str], patch: str = "pass"):
    program = launching.fake_nsys(tmp_path / "fake", behaviour)
    launching.write_run_json(tmp_path / "run", nsys_path=str(program))
    env = launching.environ(tmp_path)
    return launching.launch(tmp_path / "run", command, "--profiler", "nsys", env=env, patch=patch)


def test_nsys_runs_the_application_and_the_record_says_so(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    shell = f"echo started >> {marks}; echo out; echo err >&2; echo $TMPDIR $HPCPROF_NVTX; exit 7"
    done = start(tmp_path, GOOD, ["/bin/sh", "-c", shell])
    written = launching.manifest(tmp_path / "run")

    assert (done.returncode, done.stdout, done.stderr) == (7, f"out\n{tmp_path} 1\n", "err\n")
    assert launching.starts(marks) == 1
    assert (written["state"], written["exit_code"]) == ("OK", 7)
    assert written["state_reason"] == "nsys report, 7 bytes"
    profiler = written["profiler"]
    assert (profiler["name"], profiler["version"]) == ("nsys", "2022.4.2.1")
    assert (profiler["session"], profiler["fell_back"]) == ("hpcprof-77-1-3", False)
    assert (profiler["returncode"], written["warnings"]) == (7, [])
    assert 0 < profiler["start_seconds"] < 15
    log = (tmp_path / "run/ranks/00003/nsys.log").read_text()
    assert log.startswith(f"NSYS_ENV {tmp_path}/hpcprof-{os.getuid()} node1 0\n")


def test_the_application_keeps_the_default_of_signals_that_nsys_ignores(tmp_path: Path) -> None:
    done = start(tmp_path, GOOD, ["/bin/sh", "-c", "kill -USR1 $$; exit 0"])

    assert done.returncode == -signal.SIGUSR1
    assert launching.manifest(tmp_path / "run")["exit_code"] == 128 + signal.SIGUSR1


def test_nsys_itself_survives_usr1(tmp_path: Path) -> None:
    done = start(tmp_path, "kill -USR1 $$; " + GOOD, ["/bin/sh", "-c", "exit 7"])

    assert done.returncode == 7
    assert launching.manifest(tmp_path / "run")["state"] == "OK"


def test_no_nsys_is_no_reason_not_to_train(tmp_path: Path) -> None:
    launching.write_run_json(tmp_path / "run", nsys_path="/no/such/nsys")
    env = launching.environ(tmp_path)
    done = launching.launch(tmp_path / "run", ["/bin/sh", "-c", "exit 4"], env=env)
    written = launching.manifest(tmp_path / "run")

    assert (done.returncode, done.stderr) == (4, "")
    assert written["state"] == "NOT_PROFILED"
    assert written["state_reason"] == "nsys was not found (/no/such/nsys)"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("echo Agent launcher failed.; exit 1", "ended with code 1 before it started"),
        ("exec sleep 1000", "did not start the application in 0 s"),
        ("trap '' TERM; while :; do sleep 1; done", "did not start the application in 0 s"),
    ],
)
def test_an_nsys_that_never_starts_costs_the_recording_only(
    tmp_path: Path, behaviour: str, reason: str
) -> None:
    marks = tmp_path / "marks"
    patch = "from hpcprof.launch import nsys_start; nsys_start.WATCHDOG_SECONDS = 0.3"
    done = start(tmp_path, behaviour, launching.counting(marks, 5), patch)
    written = launching.manifest(tmp_path / "run")

    assert done.returncode == 5
    assert launching.starts(marks) == 1
    assert done.stderr.count("\n") == 1
    assert "The training runs without nsys." in done.stderr
    assert (written["state"], written["profiler"]["fell_back"]) == ("NOT_PROFILED", True)
    assert len([warning for warning in written["warnings"] if reason in warning]) == 2
    assert processes_of(tmp_path) == []


def test_where_nsys_hangs_only_one_rank_of_a_node_waits_for_it(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    program = launching.fake_nsys(tmp_path / "fake", "exec sleep 1000")
    launching.write_run_json(tmp_path / "run", nsys_path=str(program))
    patch = "from hpcprof.launch import nsys_start as s, node_lock as n; from pathlib import Path; "
    patch += f"s.WATCHDOG_SECONDS = 1.0; n.NODE_LOCK = Path('{tmp_path}/lock')"
    command = launching.counting(marks, 5)
    argv = launching.argv(tmp_path / "run", command, "--profiler", "nsys", patch=patch)
    launchers = [
        subprocess.Popen(
            argv,
            env=launching.environ(tmp_path, SLURM_PROCID=str(rank)),
            stderr=subprocess.DEVNULL,
        )
        for rank in range(4)
    ]
    assert [launcher.wait(60) for launcher in launchers] == [5] * 4
    assert launching.starts(marks) == 4
    tried = launching.calls(tmp_path / "fake")
    assert len(tried) == 2  # both attempts of the first
    said = [launching.manifest(tmp_path / "run", rank)["warnings"] for rank in range(4)]
    assert sum("none was tried" in str(warnings) for warnings in said) == 3
    assert (tmp_path / f"hpcprof-{os.getuid()}/nsys-hangs").exists()


def test_a_node_on_which_nsys_starts_again_is_forgiven(tmp_path: Path) -> None:
    note = tmp_path / f"hpcprof-{os.getuid()}/nsys-hangs"
    note.parent.mkdir(mode=0o700)
    note.touch()
    os.utime(note, (time.time() - 301,) * 2)
    start(tmp_path, GOOD, ["true"])

    assert launching.manifest(tmp_path / "run")["state"] == "OK"
    assert not note.exists()


def test_a_start_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    flaky = f'if [ ! -e {tmp_path}/tried ]; then : > {tmp_path}/tried; exit 1; fi; "$@"; '
    done = start(tmp_path, flaky + 'echo x > "$report"', launching.counting(marks, 5))
    written = launching.manifest(tmp_path / "run")

    assert (done.returncode, launching.starts(marks)) == (5, 1)
    assert (written["state"], written["profiler"]["session"]) == ("OK", "hpcprof-77-1-3-2")
    assert len(written["warnings"]) == 1


def test_a_shim_that_comes_too_late_does_not_start_a_second_training(tmp_path: Path) -> None:
    """nsys wakes up after it was given up; the token is gone by then."""
    marks = tmp_path / "marks"
    late = f'(trap "" TERM; sleep 1; "$@"; echo $? > {tmp_path}/late) & trap "" TERM; wait'
    patch = "from hpcprof.launch import nsys_start, processes; nsys_start.WATCHDOG_SECONDS = 0.2; "
    patch += "processes.end = lambda pids, grace_seconds: None"  # as if it could not be ended
    done = start(tmp_path, late, launching.counting(marks, 5), patch)

    assert done.returncode == 5
    launching.wait_until((tmp_path / "late").exists)
    time.sleep(1.0)
    assert launching.starts(marks) == 1


def test_an_nsys_that_dies_leaves_the_training_running(tmp_path: Path) -> None:
    """As after the loss of its agent: nsys returns 0 at once and the application goes on."""
    marks = tmp_path / "marks"
    lost = '"$@" & sleep 0.5; echo "Connection to the Agent lost."; exit 0'
    command = ["/bin/sh", "-c", f"echo started >> {marks}; sleep 1.5; exit 7"]
    done = start(tmp_path, lost, command)
    written = launching.manifest(tmp_path / "run")

    assert (done.returncode, launching.starts(marks)) == (7, 1)
    assert (written["exit_code"], written["profiler"]["returncode"]) == (7, 0)
    assert written["state"] == "LOST"
    assert "nsys ended before the training; it went on unrecorded" in written["warnings"]


def test_an_nsys_that_never_ends_is_ended(tmp_path: Path) -> None:
    patch = "from hpcprof.launch import nsys_watch as w; w.STALL_SECONDS = 1.5; "
    patch += "w._AFTER_TERM_SECONDS = 1.0"
    stuck = '"$@"; trap "" TERM; while :; do sleep 1; done'
    done = start(tmp_path, stuck, ["/bin/sh", "-c", "exit 7"], patch)
    written = launching.manifest(tmp_path / "run")

    assert (done.returncode, written["state"]) == (7, "LOST")
    assert written["warnings"] == [
        "nsys did not end by itself after the application",
        "nsys had to be killed",
    ]
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "says", "home", "state", "reason"),
    [
        ("n.nsys-rep", "Generated:", "rank.nsys-rep", "OK", "nsys report, 7 bytes"),
        ("n.qdstrm", "Generated:", "rank.qdstrm", "OK", "not imported yet"),
        # as at a time limit: begun, and killed before the end
        ("n.qdstrm", "Generating", "rank.qdstrm", "LOST", "cut off before nsys could finish it"),
    ],
)
def test_a_recording_left_in_scratch_is_brought_home(
    tmp_path: Path, name: str, says: str, home: str, state: str, reason: str
) -> None:
    opens = f"exec 5> $TMPDIR/{name}; echo stream >&5; "
    agent = "sh -c 'sleep 1.5; :' --start-agent & "
    says_so = f'"$@"; echo "{says}"; echo "    $TMPDIR/{name}"; sleep 1.5; exit 0'
    start(tmp_path, opens + agent + says_so, ["sleep", "1.2"])
    written = launching.manifest(tmp_path / "run")

    assert (tmp_path / "run/ranks/00003" / home).read_text() == "stream\n"
    assert written["state"] == state
    assert reason in written["state_reason"]
    assert list((tmp_path / f"hpcprof-{os.getuid()}").glob("n.*")) == []


def test_a_range_that_was_never_reached_is_empty_and_not_lost(tmp_path: Path) -> None:
    program = launching.fake_nsys(tmp_path / "fake", '"$@"; echo Generated:')
    extra = ["--capture-range=cudaProfilerApi"]
    launching.write_run_json(tmp_path / "run", nsys_path=str(program), nsys_extra=extra)
    launching.launch(tmp_path / "run", ["true"], env=launching.environ(tmp_path))

    assert launching.manifest(tmp_path / "run")["state"] == "EMPTY"


def test_a_rank_that_is_not_selected_is_not_profiled(tmp_path: Path) -> None:
    program = launching.fake_nsys(tmp_path / "fake", GOOD)
    launching.write_run_json(tmp_path / "run", nsys_path=str(program), profile_ranks="0-2")
    launching.launch(tmp_path / "run", ["true"], env=launching.environ(tmp_path))
    written = launching.manifest(tmp_path / "run")

    assert written["state_reason"] == "this rank was not selected for profiling"
    assert not (tmp_path / "fake/calls").exists()


def test_a_signal_during_the_start_ends_the_launcher_and_starts_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    program = launching.fake_nsys(tmp_path / "fake", f": > {tmp_path}/begun; exec sleep 1000")
    launching.write_run_json(tmp_path / "run", nsys_path=str(program))
    argv = launching.argv(tmp_path / "run", launching.counting(marks))
    with subprocess.Popen(argv, env=launching.environ(tmp_path)) as launcher:
        launching.wait_until((tmp_path / "begun").exists)
        launcher.terminate()
        assert launcher.wait(20) == -signal.SIGTERM

    assert launching.starts(marks) == 0
    written = launching.manifest(tmp_path / "run")
    assert written["state_reason"] == "signal 15 before the application started"
    assert processes_of(tmp_path) == []


def test_output_survives_an_nsys_that_closes_descriptors(tmp_path: Path) -> None:
    closing = "import os, sys; os.closerange(3, 300); os.execv(sys.argv[1], sys.argv[1:])"
    done = start(tmp_path, f'{sys.executable} -c \'{closing}\' "$@"; echo x > "$report"', ["pwd"])
    written = launching.manifest(tmp_path / "run")

    assert done.returncode == 0
    assert len([warning for warning in written["warnings"] if "hand the original" in warning]) == 3


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that belong to a launcher of this test."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if f"HPCPROF_NSYS_ATTEMPT={folder}".encode() in stream.read():
                    with open(f"/proc/{name}/cmdline", "rb") as line:
                        found.append(line.read().decode())
        except OSError:
            continue
    return found
