"""A window of steps, and the end of a recording before its time, with a program in nsys's place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.launch import disk_guard, hang_watch, nsys_control
from hpcprof.launch.attempt import Attempt
from hpcprof.launch.nsys_control import STARTS
from tests.unit import launching
from tests.unit.span_writer import SpanFile

pytestmark = pytest.mark.unit

STATE = 'cd "$HPCPROF_STATE_FOLDER"; '
NOW = f"{sys.executable} -S -c 'import time; print(time.monotonic_ns())'"
# a whole-run nsys: the report appears at `nsys stop`, or else at the end
PROFILE = '"$@"; code=$?; [ -e "$report" ] || echo all > "$report"; exit $code'


def leave(name: str) -> str:
    """Shell text of a training that leaves a message."""
    return f"{NOW} > {name}.part; mv {name}.part {name}; "


def wait_for(path: str) -> str:
    return f"while [ ! -e {path} ]; do sleep 0.05; done; "


def with_gpu(tmp_path: Path) -> str:
    """Python for ``Training.patch``: this node seems to have a GPU."""
    device = tmp_path / "nvidiactl"
    device.touch()
    return f"from hpcprof.launch import nsys as n; n.DEVICE_FILES = ('{device}',)"


class Training:
    """Runs shell text as the training of one rank under the fake nsys."""

    def __init__(self, tmp_path: Path, shell: str, **settings: Any) -> None:
        self.tmp_path, self.run_dir, self.fake = tmp_path, tmp_path / "run", tmp_path / "fake"
        self._shell = shell
        self._settings = settings
        self.behaviour, self.start, self.stop, self.patch = '"$@"', "", launching.WRITES, "pass"

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        argv, environ = self.prepare(**env)
        return subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def prepare(self, **env: str) -> tuple[list[str], dict[str, str]]:
        program = launching.fake_nsys(self.fake, self.behaviour, start=self.start, stop=self.stop)
        launching.write_run_json(self.run_dir, nsys_path=str(program), **self._settings)
        command = ["/bin/sh", "-c", STATE + self._shell]
        argv = launching.argv(self.run_dir, command, "--profiler", "nsys", patch=self.patch)
        return argv, launching.environ(self.tmp_path, **env)

    @property
    def manifest(self) -> dict[str, Any]:
        return launching.manifest(self.run_dir)


def test_the_window_is_opened_and_closed_as_the_training_says(tmp_path: Path) -> None:
    go_on = f"{wait_for(f'{tmp_path}/fake/begun')} {leave('window-close')}"
    go_on += wait_for(f"{tmp_path}/run/ranks/00003/rank.nsys-rep")
    shell = f'echo "$HPCPROF_WINDOW"; {leave("window-open")}{go_on}sleep 0.5; exit 7'
    training = Training(tmp_path, shell, profile_steps="20-59")
    training.start = "sleep 0.2; : > $here/begun"
    done = training.run()
    written = training.manifest

    assert (done.returncode, done.stdout, done.stderr) == (7, "20-59,host\n", "")
    launched, started, stopped = launching.calls(tmp_path / "fake")
    assert launched.startswith("launch --trace=nvtx --wait=primary --session-new=hpcprof-77-1-3 ")
    stem = tmp_path / "run/ranks/00003/rank"
    assert started == (f"start --sample=none --cpuctxsw=none -o {stem} --session=hpcprof-77-1-3")
    assert stopped == "stop --session=hpcprof-77-1-3"
    assert (written["state"], written["exit_code"]) == ("OK", 7)
    window = written["profiler"]["window"]
    assert (window["steps"], window["mode"]) == ("20-59", "host")
    starts, stops = written["profiler_busy"]
    assert (starts[2], stops[2]) == ("nsys starts", "nsys stops and writes its report")
    assert starts[0] == window["opened_ns"]
    assert stops[0] == window["closed_ns"]
    assert starts[1] - starts[0] >= 300_000_000  # and the time in which the training hears of it
    assert starts[0] < stops[0] < stops[1] < written["ended"]["monotonic_ns"]
    assert written["warnings"] == []


def test_a_window_is_on_record_while_the_training_still_runs(tmp_path: Path) -> None:
    shell = leave("window-open") + wait_for(f"{tmp_path}/fake/begun") + leave("window-close")
    training = Training(tmp_path, shell + wait_for(f"{tmp_path}/end"), profile_steps="20-59")
    training.start = ": > $here/begun"
    argv, environ = training.prepare()
    with subprocess.Popen(argv, env=environ) as launcher:
        launching.wait_until(
            lambda: (
                training.run_dir.joinpath("ranks/00003/manifest.json").exists()
                and len(training.manifest["profiler_busy"]) == 2
            )
        )
        written = training.manifest
        (tmp_path / "end").touch()
        assert launcher.wait(20) == 0
    assert written["ended"] is None
    assert written["profiler"]["name"] == "nsys"
    assert written["profiler"]["window"]["closed_ns"] > written["profiler"]["window"]["opened_ns"]


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ("", "the training ended before step 20, the first to record; it marked no step"),
        (
            ": > $HPCPROF_RANK_FOLDER/spans.bin; ",
            "the training ended before step 20, the first to record",
        ),
    ],
)
def test_a_window_that_was_never_reached_is_empty(tmp_path: Path, spans: str, reason: str) -> None:
    training = Training(tmp_path, f"{spans}exit 7", profile_steps="20-59")

    assert training.run().returncode == 7
    assert (training.manifest["state"], training.manifest["state_reason"]) == ("EMPTY", reason)
    assert len(launching.calls(tmp_path / "fake")) == 1
    assert training.manifest["profiler"]["window"]["opened_ns"] is None


def test_steps_that_are_over_before_nsys_has_started_are_said_to_be_too_few(
    tmp_path: Path,
) -> None:
    shell = leave("window-open") + leave("window-close") + wait_for(f"{tmp_path}/fake/ended")
    training = Training(tmp_path, shell, profile_steps="20-21")
    training.start, training.stop = "sleep 0.5", f"{launching.WRITES}; : > $here/ended"
    training.run()

    (warning,) = training.manifest["warnings"]
    assert "over before nsys had started" in warning
    assert training.manifest["state"] == "OK"


@pytest.mark.parametrize("step", ["start", "stop"])
def test_an_nsys_that_cannot_begin_or_end_costs_the_recording_only(
    tmp_path: Path, step: str
) -> None:
    shell = leave("window-open") + leave("window-close") + "sleep 1; exit 7"
    training = Training(tmp_path, shell, profile_steps="20-59")
    setattr(training, step, "exit 3")

    assert training.run().returncode == 7
    written = training.manifest
    assert (written["state"], written["state_reason"]) == (
        "LOST",
        f"nsys {step} ended with code 3",
    )
    assert f"nsys {step} ended with code 3" in written["warnings"]


def test_signals_pass_while_nsys_hangs_and_its_command_is_ended(tmp_path: Path) -> None:
    shell = f'trap "echo got >> {tmp_path}/got" USR1; ' + leave("window-open")
    shell += wait_for(f"{tmp_path}/got") + wait_for(f"{tmp_path}/fake/was-ended") + "exit 7"
    training = Training(tmp_path, shell, profile_steps="20-59")
    training.start = "trap ': > $here/was-ended; exit 1' TERM; : > $here/hangs; "
    training.start += "while :; do sleep 0.1; done"
    training.patch = "from hpcprof.launch import nsys_recording as r; r.START_SECONDS = 2.0"
    argv, environ = training.prepare()
    with subprocess.Popen(argv, env=environ) as launcher:
        launching.wait_until((tmp_path / "fake/hangs").exists)
        launcher.send_signal(signal.SIGUSR1)
        launching.wait_until((tmp_path / "got").exists)
        assert not (tmp_path / "fake/was-ended").exists()
        assert launcher.wait(30) == 7
    assert training.manifest["state_reason"] == "nsys start did not end in 2 s and was ended"


# passes the first TERM on to its process group, as nsys does, and no further one
PASSES_ON = """"$@" & trap 'trap "" TERM; sleep 0.3; kill -TERM 0' TERM; wait; wait; exit 0"""
PASSES_NOTHING_ON = 'trap "" TERM; "$@"; exit 0'


@pytest.mark.parametrize("nsys", [PASSES_ON, PASSES_NOTHING_ON])
def test_each_of_two_terms_reaches_the_training_once(tmp_path: Path, nsys: str) -> None:
    got = tmp_path / "got"
    shell = f'trap "echo got >> {got}" TERM; : > {tmp_path}/ready; {wait_for(f"{tmp_path}/end")}'
    training = Training(tmp_path, shell)
    training.behaviour = nsys
    training.patch = "from hpcprof.launch import nsys_watch as w; w.PASSED_ON_SECONDS = 1.0"
    argv, environ = training.prepare()
    with subprocess.Popen(argv, env=environ) as launcher:
        try:
            launching.wait_until((tmp_path / "ready").exists)
            for count in (1, 2):
                launcher.terminate()
                launching.wait_until(lambda count=count: launching.starts(got) == count)
                time.sleep(1.5)  # longer than the launcher waits for nsys
        finally:
            (tmp_path / "end").touch()
        assert launcher.wait(20) == 0
    assert launching.starts(got) == 2


def test_stop_ends_a_recording_of_the_whole_run_and_not_the_training(tmp_path: Path) -> None:
    shell = 'sleep 0.3; echo "before the time limit" > stop; ' + wait_for("stopped")
    training = Training(tmp_path, shell + f"cat stopped > {tmp_path}/answer; exit 7")
    training.behaviour = PROFILE
    done = training.run()
    written = training.manifest

    assert done.returncode == 7
    assert launching.calls(tmp_path / "fake")[1:] == ["stop --session=hpcprof-77-1-3"]
    assert (written["state"], written["state_reason"]) == (
        "PARTIAL",
        "stopped before the time limit; nsys report, 7 bytes",
    )
    assert (tmp_path / "answer").read_text() == "ok: the recording is written, 7 bytes"
    ((begin, end, why),) = written["profiler_busy"]
    assert begin < end < written["ended"]["monotonic_ns"]
    assert why == "nsys stops and writes its report"


def test_stop_before_the_window_keeps_it_from_opening(tmp_path: Path) -> None:
    shell = 'echo "before the time limit" > stop; ' + wait_for("stopped") + leave("window-open")
    training = Training(
        tmp_path, shell + f"cat stopped > {tmp_path}/answer; sleep 0.5", profile_steps="20-59"
    )
    training.run()

    assert len(launching.calls(tmp_path / "fake")) == 1
    assert (tmp_path / "answer").read_text() == "ok: nothing was recorded"
    assert (training.manifest["state"], training.manifest["state_reason"]) == (
        "EMPTY",
        "stopped before the time limit, before step 20, the first to record",
    )


def test_a_stop_that_fails_is_answered_so_and_the_rest_is_recorded(tmp_path: Path) -> None:
    shell = 'echo "before the time limit" > stop; ' + wait_for("stopped")
    training = Training(tmp_path, shell + f"cat stopped > {tmp_path}/answer; exit 7")
    training.behaviour, training.stop = PROFILE, "exit 2"
    training.patch = "from hpcprof.launch import nsys_recording as r; r.RETRY_SECONDS = 0.2"

    assert training.run().returncode == 7
    assert launching.calls(tmp_path / "fake")[1:] == ["stop --session=hpcprof-77-1-3"] * 3
    assert (tmp_path / "answer").read_text() == "problem: nsys stop ended with code 2"
    assert (training.manifest["state"], training.manifest["state_reason"]) == (
        "OK",
        "nsys report, 4 bytes",
    )


def test_a_stop_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    rank = f"{tmp_path}/run/ranks/00003"
    # closed before the launcher knows that nsys has started, the window would be too short
    told = f"grep -qx ' *\"{STARTS}\"' {rank}/manifest.json"
    started = f"until {told}; do sleep 0.05; done; "
    shell = leave("window-open") + started + leave("window-close")
    shell += wait_for(f"{rank}/rank.nsys-rep") + "sleep 1; exit 7"
    training = Training(tmp_path, shell, profile_steps="20-59")
    training.stop = f"[ -e $here/tried ] || {{ : > $here/tried; exit 2; }}; {launching.WRITES}"
    training.patch = "from hpcprof.launch import nsys_recording as r; r.RETRY_SECONDS = 0.2"

    assert training.run().returncode == 7
    assert len(launching.calls(tmp_path / "fake")) == 4  # launch, start, stop, stop
    written = training.manifest
    assert (written["state"], written["warnings"]) == ("OK", ["nsys stop ended with code 2"])


def test_a_stop_that_hangs_keeps_the_job_a_short_time_after_its_training(tmp_path: Path) -> None:
    shell = leave("window-open") + wait_for(f"{tmp_path}/fake/begun") + leave("window-close")
    training = Training(
        tmp_path, shell + wait_for(f"{tmp_path}/fake/hangs") + "exit 7", profile_steps="20-59"
    )
    training.start, training.stop = ": > $here/begun", ": > $here/hangs; exec sleep 1000"
    training.patch = "from hpcprof.launch import nsys_recording as r; r.IDLE_STOP_SECONDS = 1.5"

    assert training.run().returncode == 7
    assert training.manifest["state"] == "LOST"
    (warning,) = training.manifest["warnings"]
    assert re.fullmatch(r"nsys stop did not end in \d+ s and was ended", warning)


def test_a_command_that_nothing_can_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits in the kernel for a file system."""
    monkeypatch.setattr(nsys_control, "spawn_nsys", lambda *_: os.getpid())
    monkeypatch.setattr(nsys_control.processes, "reap", lambda _: None)
    monkeypatch.setattr(nsys_control.processes, "send", lambda *_: True)
    monkeypatch.setattr(nsys_control, "_KILL_AFTER_SECONDS", 0.0)
    attempt = Attempt(tmp_path / "attempt")
    plan, inbox = cast(Any, None), cast(Any, None)
    command = nsys_control.Command(plan, attempt, ["/n/nsys", "stop"], inbox, limit_seconds=0.0)

    assert [command.has_ended() for _ in range(3)] == [False, False, True]
    assert command.problem == "nsys stop did not end in 0 s and was ended"


def test_a_hang_ends_the_recording_and_is_on_record(tmp_path: Path) -> None:
    shell = """sleep 0.2; echo '{"step": 12, "seconds": 600.0}' > x; mv x hang; """
    shell += wait_for(f"{tmp_path}/run/ranks/00003/rank.nsys-rep") + "exit 7"
    training = Training(tmp_path, shell)
    training.behaviour = PROFILE

    assert training.run().returncode == 7
    written = training.manifest
    assert written["hangs"] == [{"step": 12, "seconds": 600.0}]
    assert written["state_reason"] == "stopped: the training hung; nsys report, 7 bytes"


def test_a_hang_before_the_window_does_not_cost_it(tmp_path: Path) -> None:
    shell = """echo '{"step": -1, "seconds": 600.0}' > x; mv x hang; sleep 1.5; """
    shell += leave("window-open") + wait_for(f"{tmp_path}/fake/begun") + "sleep 1.5; "
    training = Training(tmp_path, shell + leave("window-close") + "sleep 1", profile_steps="20-59")
    training.start = ": > $here/begun"
    training.run()

    assert len(training.manifest["hangs"]) == 1
    assert (training.manifest["state"], training.manifest["warnings"]) == ("OK", [])


def test_a_disk_that_is_nearly_full_ends_the_recording(tmp_path: Path) -> None:
    shell = wait_for(f"{tmp_path}/run/ranks/00003/rank.nsys-rep") + "exit 7"
    training = Training(tmp_path, shell)
    training.behaviour = PROFILE
    training.patch = "from hpcprof.launch import disk_guard as d; d.INTERVAL_SECONDS = 0.1; "
    training.patch += "d.MIN_SCRATCH_BYTES = 2**60"

    assert training.run().returncode == 7
    written = training.manifest
    assert written["state_reason"] == "stopped: disk nearly full; nsys report, 7 bytes"
    (warning,) = written["warnings"]
    assert str(tmp_path / f"hpcprof-{os.getuid()}") in warning


def test_both_disks_need_room_in_proportion_to_the_recording(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize

    assert disk_guard.shortage(tmp_path, tmp_path, 0) is None
    assert disk_guard.shortage(tmp_path, tmp_path / "gone", free // 4) is None
    scratch = disk_guard.shortage(tmp_path, tmp_path / "gone", free)
    assert scratch is not None and scratch.startswith(f"{tmp_path} has ")
    run_folder = disk_guard.shortage(tmp_path / "gone", tmp_path, free)
    assert run_folder is not None and run_folder.startswith(f"{tmp_path} has ")


def test_a_capture_range_of_the_user_goes_before_our_window(tmp_path: Path) -> None:
    training = Training(
        tmp_path,
        'echo "<$HPCPROF_WINDOW>"',
        profile_steps="20-59",
        nsys_extra=["--capture-range=nvtx"],
    )
    training.behaviour = PROFILE

    assert training.run().stdout == "<>\n"
    (call,) = launching.calls(tmp_path / "fake")
    assert call.startswith("profile ")
    assert training.manifest["warnings"] == [
        "nsys_extra has a capture range, so profile_steps is not obeyed"
    ]


@pytest.mark.parametrize(
    ("steps", "launch_help", "warning"),
    [
        ("59-20", launching.NSYS_LAUNCH_HELP, "the last step comes before the first"),
        ("20-59", "nothing", "the whole run is recorded: this nsys has no sessions"),
    ],
)
def test_without_a_window_the_whole_run_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str, launch_help: str, warning: str
) -> None:
    monkeypatch.setattr(launching, "NSYS_LAUNCH_HELP", launch_help)
    training = Training(tmp_path, "exit 7", profile_steps=steps)
    training.behaviour = PROFILE

    assert training.run().returncode == 7
    assert training.manifest["state"] == "OK"
    assert "window" not in training.manifest["profiler"]
    (said,) = training.manifest["warnings"]
    assert warning in said


def test_where_cuda_is_traced_the_training_switches_nsys_itself(tmp_path: Path) -> None:
    training = Training(tmp_path, 'echo "$HPCPROF_WINDOW"', profile_steps="20-59")
    training.patch = with_gpu(tmp_path)
    done = training.run()

    assert done.stdout == "20-59,cuda\n"
    (call,) = launching.calls(tmp_path / "fake")
    assert call.startswith("profile --trace=cuda,nvtx ")
    assert " --capture-range=cudaProfilerApi --capture-range-end=stop " in call
    assert training.manifest["state"] == "EMPTY"


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_without_a_usable_gpu_the_launcher_switches_nsys(tmp_path: Path, hidden: str) -> None:
    training = Training(tmp_path, 'echo "$HPCPROF_WINDOW"', profile_steps="20-59")
    training.patch = with_gpu(tmp_path)

    assert training.run(CUDA_VISIBLE_DEVICES=hidden).stdout == "20-59,host\n"


def test_what_kept_the_window_from_opening_is_said(tmp_path: Path) -> None:
    why = "cuProfilerStart returned 3"
    training = Training(tmp_path, f"echo '{why}' > window-failed", profile_steps="20-59")
    training.patch = with_gpu(tmp_path)
    training.run()

    assert (training.manifest["state"], training.manifest["state_reason"]) == ("EMPTY", why)


def test_a_training_that_went_beyond_its_window_is_not_said_to_have_ended_before(
    tmp_path: Path,
) -> None:
    spans = tmp_path / "spans.bin"
    content = SpanFile().step(1, 2, 0).step(2, 3, 60).content
    spans.write_bytes(content)
    shell = f"cp {spans} $HPCPROF_RANK_FOLDER/spans.bin"
    training = Training(tmp_path, shell, profile_steps="20-59")
    training.patch = with_gpu(tmp_path)
    training.run()

    assert training.manifest["state_reason"] == "no step of 20-59 was recorded"


def test_with_an_unknown_agent_nobody_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    shell = 'echo "before the time limit" > stop; ' + wait_for("stopped")
    training = Training(
        tmp_path, shell + f"cat stopped > {tmp_path}/answer; exit 7", profile_steps="20-59"
    )
    training.patch = with_gpu(tmp_path)

    assert training.run().returncode == 7
    answer = (tmp_path / "answer").read_text()
    assert answer.startswith("problem: not known whether it records")


def test_the_training_is_believed_where_the_agent_is_unknown(tmp_path: Path) -> None:
    shell = leave("window-open") + "sleep 0.6; echo 'before the time limit' > stop; "
    shell += wait_for("stopped") + f"cat stopped > {tmp_path}/answer; exit 7"
    training = Training(tmp_path, shell, profile_steps="20-59")
    training.behaviour, training.patch = '"$@"', with_gpu(tmp_path)

    assert training.run().returncode == 7
    assert (tmp_path / "answer").read_text() == "ok: the recording is written, 7 bytes"
    assert launching.calls(tmp_path / "fake")[1:] == ["stop --session=hpcprof-77-1-3"]


@pytest.mark.parametrize("says", ["", "print('Generated:\\n    ' + sys.argv[1], flush=True)\n"])
def test_the_recording_of_cuda_is_followed_by_the_file_that_the_agent_has_open(
    tmp_path: Path, says: str
) -> None:
    """The agent opens it at cuProfilerStart, closes it at cuProfilerStop, and then imports it."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import os, sys, time\n"
        "def wait(name):\n"
        f"    while not os.path.exists('{tmp_path}/' + name): time.sleep(0.02)\n"
        "wait('open'); stream = open(os.environ['TMPDIR'] + '/n.qdstrm', 'w'); stream.write('x')\n"
        "wait('close'); stream.close()\n"
        "end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: pass\n"
        "open(sys.argv[1], 'w').write('report')\n"
        f"{says}"
        "time.sleep(60)\n"
    )
    shell = f"{wait_for(f'{tmp_path}/end')} exit 7"
    training = Training(tmp_path, shell, profile_steps="20-59")
    python = f"{sys.executable} -S {agent} $report --start-agent"
    training.behaviour = f'{python} & "$@"; code=$?; kill $!; exit $code'
    training.patch = with_gpu(tmp_path)
    argv, environ = training.prepare()
    with subprocess.Popen(argv, env=environ) as launcher:
        launching.wait_until(lambda: (tmp_path / "fake/report").exists())
        time.sleep(0.5)
        (tmp_path / "open").touch()
        opened = time.monotonic_ns()
        launching.wait_until(lambda: training.manifest["profiler"]["window"]["opened_ns"])
        closed = time.monotonic_ns()
        (tmp_path / "close").touch()
        launching.wait_until(lambda: training.manifest["profiler_busy"])
        (tmp_path / "end").touch()
        assert launcher.wait(20) == 7
    written = training.manifest
    window = written["profiler"]["window"]
    assert opened < window["opened_ns"] <= window["closed_ns"]
    ((begin, end, why),) = written["profiler_busy"]
    assert begin == window["closed_ns"] < closed + 500_000_000
    assert end > closed + 500_000_000
    assert why == "nsys stops and writes its report"
    assert (written["state"], written["warnings"]) == ("OK", [])


def test_a_container_sees_nsys_and_its_scratch_and_the_window(tmp_path: Path) -> None:
    apptainer = tmp_path / "bin/apptainer"
    apptainer.parent.mkdir()
    apptainer.write_text(
        '#!/bin/sh\necho "$APPTAINER_BIND"; echo "$APPTAINERENV_HPCPROF_WINDOW $*"; exit 7\n'
    )
    apptainer.chmod(0o755)
    program = launching.fake_nsys(tmp_path / "fake", '"$@"')
    run_dir = tmp_path / "run"
    launching.write_run_json(run_dir, nsys_path=str(program), profile_steps="20-59")
    env = launching.environ(tmp_path, PATH=f"{apptainer.parent}:{os.environ['PATH']}")
    command = ["apptainer", "exec", "image.sif", "python", "train.py"]
    done = launching.launch(run_dir, command, "--profiler", "nsys", env=env)
    binds, rest = done.stdout.splitlines()

    assert done.returncode == 7
    assert rest == "20-59,host exec image.sif python train.py"
    scratch = tmp_path / f"hpcprof-{os.getuid()}"
    assert {str(run_dir), str(scratch), str(tmp_path / "fake")} <= set(binds.split(","))
    assert launching.manifest(run_dir)["argv"] == command


def test_a_mistake_of_ours_leaves_the_training_alone(tmp_path: Path) -> None:
    training = Training(tmp_path, "sleep 1.5; exit 7")
    training.behaviour = PROFILE
    training.patch = "from hpcprof.launch.early_end import EarlyEnd; EarlyEnd.asked = None"

    assert training.run().returncode == 7
    assert training.manifest["state"] == "OK"
    (warning,) = training.manifest["warnings"]
    assert warning.startswith("the recording was left to itself: TypeError")


HOLDER = """
import sys, threading, time
held = open(sys.argv[1], "rb")
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read(1)
held.close()
print("closed", flush=True)
sys.stdin.read()
"""


def test_a_training_that_holds_the_interpreter_is_seen_from_outside(tmp_path: Path) -> None:
    spans = tmp_path / "spans.bin"
    spans.write_bytes(b"")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(spans)], stdin=-1, stdout=-1, text=True
    ) as training:
        assert training.stdout is not None and training.stdin is not None
        training.stdout.readline()
        spans.write_bytes(SpanFile(pid=training.pid).content)
        watch = hang_watch.HangWatch(spans, hang_after_s=600)
        assert watch.look(1000.0) is None  # the first sight of it
        assert watch.look(1629.9) is None
        hang = watch.look(1640.0)
        assert hang is not None
        assert (hang["step"], hang["seconds"]) == (None, 640.0)
        assert len(hang["threads"]) >= 1
        assert all(re.match(r"python.*: [A-Z], \S+", text) for text in hang["threads"])
        assert json.loads(json.dumps(hang)) == hang
        assert watch.look(2400.0) is None  # told once

        spans.write_bytes(spans.read_bytes() + bytes(40))
        assert watch.look(2500.0) is None
        watch.is_told()  # the training's own watchdog was faster
        assert watch.look(9000.0) is None

        spans.write_bytes(spans.read_bytes() + bytes(40))
        assert watch.look(9100.0) is None
        training.stdin.write("x")
        training.stdin.flush()
        training.stdout.readline()
        assert watch.look(20000.0) is None  # it has stopped recording: that is no hang
        training.stdin.close()


def test_a_training_without_marked_steps_is_not_said_to_hang(tmp_path: Path) -> None:
    watch = hang_watch.HangWatch(ArtifactPaths(tmp_path).spans(3), hang_after_s=1)

    assert [watch.look(second) for second in (0.0, 100.0, 1000.0)] == [None, None, None]
