"""A rank without nsys: its exit code, its signals, its environment, and what is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.launch.gpus import ANSWER
from tests.unit import launching

pytestmark = pytest.mark.unit

NONE = ("--profiler", "none")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    launching.write_run_json(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("code", [0, 7, 255])
def test_the_exit_code_is_the_applications(tmp_path: Path, run_dir: Path, code: int) -> None:
    command = ["/bin/sh", "-c", f"exit {code}"]
    done = launching.launch(run_dir, command, *NONE, env=launching.environ(tmp_path))

    assert done.returncode == code
    assert done.stderr == ""
    written = launching.manifest(run_dir)
    assert written["exit_code"] == code
    assert written["state"] == "NOT_PROFILED"
    assert (written["rank"], written["local_rank"], written["world_size"]) == (3, 1, 4)
    assert (written["job_id"], written["slurm_step"], written["node"]) == ("77", "1", "node1")
    assert written["argv"] == command
    assert written["started"]["monotonic_ns"] < written["ended"]["monotonic_ns"]
    assert not (run_dir / "ranks/00003/manifest.reserve").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_killed_by_a_signal_looks_killed_to_slurm(
    tmp_path: Path, run_dir: Path, signum: signal.Signals
) -> None:
    command = ["/bin/sh", "-c", f"kill -{int(signum)} $$"]
    done = launching.launch(run_dir, command, *NONE, env=launching.environ(tmp_path))

    assert done.returncode == -signum
    assert launching.manifest(run_dir)["exit_code"] == 128 + signum


def test_a_command_that_does_not_exist_gives_127(tmp_path: Path, run_dir: Path) -> None:
    done = launching.launch(run_dir, ["no-such-program"], *NONE, env=launching.environ(tmp_path))

    assert done.returncode == 127
    assert "cannot run 'no-such-program': No such file or directory" in done.stderr
    assert launching.manifest(run_dir)["exit_code"] == 127


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_reaches_the_application_once(
    tmp_path: Path, run_dir: Path, signum: signal.Signals
) -> None:
    got = tmp_path / "got"
    application = (
        "import signal, time\n"
        f"signal.signal({int(signum)}, lambda n, f: open({str(got)!r}, 'a').write(f'{{n}}\\n'))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w')\n"
        "end = time.monotonic() + 1.0\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "raise SystemExit(5)\n"
    )
    argv = launching.argv(run_dir, [sys.executable, "-c", application], *NONE)
    with subprocess.Popen(argv, env=launching.environ(tmp_path)) as launcher:
        launching.wait_until((tmp_path / "ready").exists)
        launcher.send_signal(signum)
        assert launcher.wait(20) == 5

    assert got.read_text() == f"{int(signum)}\n"


def test_what_nohup_ignores_stays_ignored(tmp_path: Path, run_dir: Path) -> None:
    status = ["/bin/sh", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status"]
    argv = ["nohup", *launching.argv(run_dir, status, *NONE)]
    env = launching.environ(tmp_path)
    plain = subprocess.run(["nohup", *status], env=env, capture_output=True, text=True, check=True)
    ours = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)

    assert plain.stdout.split()[3][-1] == "1"  # SIGHUP is bit 0
    assert ours.stdout == plain.stdout


def test_inherited_descriptors_stay_open(tmp_path: Path, run_dir: Path) -> None:
    """PMI hands a socket down by number (PMI_FD); closing it would break MPI_Init."""
    readable, writable = os.pipe()
    write = [sys.executable, "-c", f"import os; os.write({writable}, b'pmi')"]
    argv = launching.argv(run_dir, write, *NONE)
    env = launching.environ(tmp_path)
    subprocess.run(argv, env=env, pass_fds=[writable], check=True)
    os.close(writable)

    with os.fdopen(readable) as stream:
        assert stream.read() == "pmi"


def test_the_application_gets_hpcprof_and_nothing_else_on_its_path(
    tmp_path: Path, run_dir: Path
) -> None:
    code = (
        "import json, os, sys\n"
        "first = os.environ['PYTHONPATH'].split(':')[0]\n"
        "import hpcprof.annotate\n"
        "print(json.dumps({'names': os.listdir(first), 'rest': os.environ['PYTHONPATH'],"
        " 'file': hpcprof.__file__, 'first': first, 'tests': 'tests' in sys.modules,"
        " 'ours': {k: v for k, v in os.environ.items() if k.startswith('HPCPROF')},"
        " 'state': os.path.isdir(os.environ['HPCPROF_STATE_FOLDER']),"
        " 'umask': os.umask(0)}))\n"
    )
    env = launching.environ(tmp_path, PYTHONPATH=f"{launching.REPOSITORY}:/somewhere")
    done = launching.launch(run_dir, [sys.executable, "-c", code], *NONE, env=env)
    seen = json.loads(done.stdout)
    state = seen["ours"]["HPCPROF_STATE_FOLDER"]

    assert sorted(seen["names"]) == ["hpcprof", "sitecustomize.py"]
    assert seen["rest"] == f"{seen['first']}:{launching.REPOSITORY}:/somewhere"
    assert seen["file"] == f"{seen['first']}/hpcprof/__init__.py"
    assert seen["state"]
    assert seen["ours"] == {
        "HPCPROF_HANG_AFTER_S": "600",
        "HPCPROF_OP_STEPS": "10-29",
        "HPCPROF_WORLD_SIZE": "4",
        "HPCPROF_RANK": "3",
        "HPCPROF_RANK_FOLDER": str(run_dir / "ranks/00003"),
        "HPCPROF_STATE_FOLDER": state,
    }
    assert seen["umask"] == os.umask(os.umask(0o22)) or seen["umask"] == 0o22
    assert Path(state).parent == tmp_path / f"hpcprof-{os.getuid()}"
    assert not Path(state).exists()


def test_a_world_size_that_nobody_told_is_not_passed_on(tmp_path: Path, run_dir: Path) -> None:
    env = launching.environ(tmp_path)
    del env["SLURM_STEP_NUM_TASKS"]
    shown = ["/bin/sh", "-c", 'echo "<$HPCPROF_WORLD_SIZE>"']
    done = launching.launch(run_dir, shown, *NONE, env=env)

    assert done.stdout == "<>\n"
    assert launching.manifest(run_dir)["world_size"] == 4  # made up: rank 3, and no more known


@pytest.mark.parametrize(
    ("setting", "seen", "warnings"), [(0, "<>", 0), (30.5, "<30.5>", 0), ("soon", "<>", 1)]
)
def test_the_watchdog_is_set_by_the_run(
    tmp_path: Path, setting: object, seen: str, warnings: int
) -> None:
    launching.write_run_json(tmp_path / "run", hang_after_s=setting)
    shown = ["/bin/sh", "-c", 'echo "<$HPCPROF_HANG_AFTER_S>"']
    done = launching.launch(tmp_path / "run", shown, *NONE, env=launching.environ(tmp_path))

    assert done.stdout == f"{seen}\n"
    assert len(launching.manifest(tmp_path / "run")["warnings"]) == warnings


def test_what_the_training_tells_of_itself_is_in_the_manifest(
    tmp_path: Path, run_dir: Path
) -> None:
    hang = '{"step": 7, "seconds": 600.1, "at": {"realtime_ns": 5, "monotonic_ns": 4}}'
    shell = 'cd "$HPCPROF_STATE_FOLDER"; echo 8 > horovod-size; echo 0.2.11 > nvtx-version; '
    shell += f"echo '{hang}' > hang"
    launching.launch(run_dir, ["/bin/sh", "-c", shell], *NONE, env=launching.environ(tmp_path))
    written = launching.manifest(run_dir)

    assert (written["horovod_size"], written["nvtx_version"]) == (8, "0.2.11")
    assert written["hangs"] == [
        {"step": 7, "seconds": 600.1, "at": {"realtime_ns": 5, "monotonic_ns": 4}}
    ]


def test_the_gpus_of_the_rank_are_in_the_manifest_and_a_hanging_driver_is_left(
    tmp_path: Path, run_dir: Path
) -> None:
    patch = "import os, subprocess; from hpcprof.launch import gpus; "
    patch += f"gpus.start = lambda state, e, i: (os.system('echo [] > ' + str(state / '{ANSWER}')),"
    patch += " subprocess.Popen(['sleep', '1000']).pid)[1]"
    env = launching.environ(tmp_path)
    done = launching.launch(run_dir, ["/bin/sh", "-c", "exit 7"], *NONE, env=env, patch=patch)

    assert done.returncode == 7
    assert launching.manifest(run_dir)["gpus"] == []
    sleeping = subprocess.run(["pgrep", "-f", "^sleep 1000$"], capture_output=True, text=True)
    environs = (Path(f"/proc/{pid}/environ").read_bytes() for pid in sleeping.stdout.split())
    assert not any(str(tmp_path).encode() in content for content in environs)


def test_every_hang_is_written_down_while_the_training_runs(tmp_path: Path, run_dir: Path) -> None:
    shell = 'cd "$HPCPROF_STATE_FOLDER"; say() { echo "{\\"step\\": $1, \\"seconds\\": 9}" > x; '
    shell += f"mv x hang; while [ ! -e {tmp_path}/go$1 ]; do sleep 0.05; done; }}; say 7; say 8"
    argv = launching.argv(run_dir, ["/bin/sh", "-c", shell], *NONE)
    with subprocess.Popen(argv, env=launching.environ(tmp_path)) as launcher:
        for count, step in enumerate((7, 8), start=1):
            launching.wait_until(lambda: len(_hangs(run_dir)) == count)  # noqa: B023
            assert _hangs(run_dir)[-1] == {"step": step, "seconds": 9}
            (tmp_path / f"go{step}").touch()
        assert launcher.wait(20) == 0

    assert len(_hangs(run_dir)) == 2


def _hangs(run_dir: Path) -> list[dict[str, object]]:
    try:
        found: list[dict[str, object]] = launching.manifest(run_dir)["hangs"]
    except FileNotFoundError:
        return []
    return found


def test_no_place_for_the_state_folder_is_no_reason_not_to_train(
    tmp_path: Path, run_dir: Path
) -> None:
    patch = "from hpcprof.launch import state_folder as s; "
    patch += "s.make_state_folder = lambda *_: open('/no/such/folder/x')"
    env = launching.environ(tmp_path)
    done = launching.launch(run_dir, ["/bin/sh", "-c", "exit 7"], *NONE, env=env, patch=patch)

    assert done.returncode == 7
    (warning,) = launching.manifest(run_dir)["warnings"]
    assert "the training cannot import hpcprof's spans" in warning


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"profiler": "none"}, "no profiler was asked for"),
        ({"profile_ranks": "0"}, "this rank was not selected for profiling"),
        ({"nsys_path": "/no/such"}, "nsys was not found (/no/such)"),
    ],
)
def test_why_nothing_is_recorded_is_known_while_the_training_runs(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    """Whoever is killed at the time limit cannot say it any more."""
    run_dir = tmp_path / "run"
    launching.write_run_json(run_dir, hang_after_s="soon", **settings)
    show = ["cat", str(run_dir / "ranks/00003/manifest.json")]
    env = launching.environ(tmp_path)
    running = json.loads(launching.launch(run_dir, show, env=env).stdout)

    assert (running["ended"], running["exit_code"]) == (None, None)
    assert (running["state"], running["state_reason"]) == ("NOT_PROFILED", reason)
    assert running["warnings"] == ["hang_after_s: 'soon' is no number; no hang is noticed"]


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (None, "the defaults of launch are used"),
        ({"nsys_trace": None}, "nsys cannot be used: TypeError"),
        ({"nsys_extra": 5}, "nsys cannot be used: TypeError"),
        ({"scratch": 5}, "no scratch folder: TypeError"),
        ({"profile_ranks": "²"}, "profile_ranks: '²' is none of"),
        ({"profile_ranks": "9" * 5000}, "not selected"),
    ],
)
def test_settings_of_the_wrong_kind_are_no_reason_not_to_train(
    tmp_path: Path, launch: dict[str, object] | None, said: str
) -> None:
    run_dir = tmp_path / "run"
    nsys = launching.fake_nsys(tmp_path / "fake", '"$@"')
    launching.write_run_json(run_dir)
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "launch": launch}))
    env = launching.environ(tmp_path, PATH=f"{nsys.parent}:{os.environ['PATH']}")
    done = launching.launch(run_dir, launching.counting(tmp_path / "marks", 7), env=env)

    assert (done.returncode, launching.starts(tmp_path / "marks")) == (7, 1)
    written = launching.manifest(run_dir)
    assert said in "; ".join([written["state_reason"], *written["warnings"]])


@pytest.mark.parametrize(
    ("broken", "is_recorded"),
    [
        ("from hpcprof.launch import rank as m; name = 'end_orphans'", True),
        ("from hpcprof.launch import gpus as m; name = 'start'", True),
        ("from hpcprof.launch import container as m; name = 'command'", True),
        ("from hpcprof.launch.rank_messages import RankMessages as m; name = 'look'", True),
        ("from hpcprof.launch.rank_messages import RankMessages as m; name = 'read'", True),
        ("from hpcprof.launch import state_folder as m; name = 'last_words'", True),
        ("from hpcprof.launch import nsys_rank as m; name = '_plan'", True),
        ("from hpcprof.launch import rank_record as m; name = 'claim'", False),
        ("import os as m; name = 'fork'", False),
        ("from hpcprof.launch.rank_record import RankRecord as m; name = 'complete'", False),
    ],
)
def test_no_error_of_ours_costs_the_training_or_its_code(
    tmp_path: Path, run_dir: Path, broken: str, is_recorded: bool
) -> None:
    patch = f"{broken}; setattr(m, name, lambda *a, **k: (_ for _ in ()).throw({{}}('broken')))"
    patch = patch.format("OSError" if "fork" in broken else "KeyError")
    command = ["/bin/sh", "-c", f"echo started >> {tmp_path}/marks; sleep 0.2; exit 7"]
    done = launching.launch(run_dir, command, env=launching.environ(tmp_path), patch=patch)

    assert (done.returncode, launching.starts(tmp_path / "marks")) == (7, 1)
    if is_recorded:
        written = launching.manifest(run_dir)
        assert written["exit_code"] == 7
        assert "KeyError('broken')" in "; ".join([written["state_reason"], *written["warnings"]])
    else:
        assert "hpcprof launch: " in done.stderr


def test_last_words_of_annotate_become_a_warning(tmp_path: Path, run_dir: Path) -> None:
    command = ["/bin/sh", "-c", 'echo "disk full at step 7" > $HPCPROF_STATE_FOLDER/annotate-error']
    launching.launch(run_dir, command, *NONE, env=launching.environ(tmp_path))

    assert launching.manifest(run_dir)["warnings"] == ["annotate: disk full at step 7"]


def test_a_second_start_runs_but_leaves_the_record_alone(tmp_path: Path, run_dir: Path) -> None:
    env = launching.environ(tmp_path)
    launching.launch(run_dir, ["/bin/sh", "-c", "exit 4"], *NONE, env=env)
    before = (run_dir / "ranks/00003/manifest.json").read_bytes()
    second = ["/bin/sh", "-c", "env | grep -c HPCPROF_; exit 9"]
    # an outer launcher's folder must not be written by a rank that is not recorded
    ours = ("RANK_FOLDER", "STATE_FOLDER", "WINDOW", "HANG_AFTER_S", "WORLD_SIZE", "OWNER_PID")
    inherited = {**env, **{f"HPCPROF_{name}": "/outer" for name in ours}}
    done = launching.launch(run_dir, second, *NONE, env=inherited)

    assert done.returncode == 9
    assert done.stdout == "0\n"
    assert done.stderr.count("\n") == 1
    assert "already holds the recording of another start" in done.stderr
    assert (run_dir / "ranks/00003/manifest.json").read_bytes() == before


def test_a_folder_with_a_report_of_somebody_else_is_left_alone(
    tmp_path: Path, run_dir: Path
) -> None:
    report = run_dir / "ranks/00003/rank.nsys-rep"
    report.parent.mkdir(parents=True)
    report.write_text("of last week")
    done = launching.launch(run_dir, ["/bin/sh", "-c", "exit 6"], env=launching.environ(tmp_path))

    assert done.returncode == 6
    assert "already holds the recording of another start" in done.stderr
    assert [path.name for path in report.parent.iterdir()] == ["rank.nsys-rep"]


def test_an_unknown_rank_runs_unrecorded(tmp_path: Path, run_dir: Path) -> None:
    env = launching.environ(tmp_path)
    del env["SLURM_PROCID"]
    done = launching.launch(run_dir, ["/bin/sh", "-c", "exit 6"], *NONE, env=env)

    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert "no rank in the environment" in done.stderr
    assert not (run_dir / "ranks").exists()


def test_no_run_folder_runs_unrecorded(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpcprof", "launch", "--", "/bin/sh", "-c", "exit 3"]
    env = launching.environ(tmp_path)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    assert "no run folder" in done.stderr


def test_a_run_folder_that_cannot_be_made_runs_unrecorded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = launching.environ(tmp_path)
    done = launching.launch(tmp_path / "file", ["/bin/sh", "-c", "exit 8"], *NONE, env=env)

    assert done.returncode == 8
    assert done.stderr.count("\n") == 1
    assert "the run folder cannot be written" in done.stderr


def test_a_missing_run_record_is_a_warning(tmp_path: Path) -> None:
    env = launching.environ(tmp_path)
    launching.launch(tmp_path / "run", ["true"], *NONE, env=env)

    (warning,) = launching.manifest(tmp_path / "run")["warnings"]
    assert "run.json; the defaults of launch are used" in warning


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_that_fills_up_still_takes_the_final_manifest(tmp_path: Path) -> None:
    run_dir = tmp_path / "full"
    run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", run_dir], check=True)
    try:
        launching.write_run_json(run_dir)
        fill = f"head -c 1M /dev/zero > {run_dir}/big 2>/dev/null; exit 7"
        env = launching.environ(tmp_path)
        done = launching.launch(run_dir, ["/bin/sh", "-c", fill], *NONE, env=env)
        assert done.returncode == 7
        assert os.statvfs(run_dir).f_bavail * 4096 <= 16384
        assert launching.manifest(run_dir)["exit_code"] == 7
        # and a rank that starts on the full disk is not held up by it
        next_rank = {**env, "SLURM_PROCID": "2"}
        (run_dir / "more").write_bytes(b"")
        with open(run_dir / "more", "wb", buffering=0) as stream, pytest.raises(OSError):
            while stream.write(b"x" * 4096):
                pass
        late = launching.launch(run_dir, ["/bin/sh", "-c", "exit 5"], *NONE, env=next_rank)
        assert late.returncode == 5
        assert "the run folder cannot be written" in late.stderr
    finally:
        subprocess.run(["umount", run_dir], check=True)


def test_a_file_of_the_current_folder_cannot_stop_the_launcher(
    tmp_path: Path, run_dir: Path
) -> None:
    for module in ("argparse", "json", "zlib", "shutil"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('shadowed')\n")
    argv = [sys.executable, "-m", "hpcprof", "launch", "--run-dir", str(run_dir), *NONE]
    env = launching.environ(tmp_path)
    done = subprocess.run([*argv, "--", "/bin/sh", "-c", "exit 2"], cwd=tmp_path, env=env)

    assert done.returncode == 2


PYTHON_38 = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))


@pytest.mark.skipif(not PYTHON_38, reason="no Python 3.8 on this machine")
def test_the_launcher_runs_on_python_3_8(tmp_path: Path, run_dir: Path) -> None:
    nsys = launching.fake_nsys(tmp_path / "fake", 'echo report > "$report"; exec "$@"')
    argv = launching.argv(run_dir, ["/bin/sh", "-c", "exit 7"], "--profiler", "nsys")
    argv[0] = str(PYTHON_38[0])
    env = launching.environ(tmp_path, PATH=f"{nsys.parent}:{os.environ['PATH']}")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (7, "")
    assert launching.manifest(run_dir)["state"] == "OK"
