"""The doctor's checks against programs and folders as they are found on machines."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from hpcprof.doctor import (
    command,
    environment,
    mpi,
    node,
    nsys,
    output_folder,
    programs,
    slurm,
    this_hpcprof,
    training,
)
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, WARN, Row
from hpcprof.doctor.subject import Request, Subject
from hpcprof.launch import processes
from tests.unit.launching import fake_nsys, wait_until
from tests.unit.slurm_stubs import write_program

pytestmark = pytest.mark.unit


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on PATH, before the shell's own tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def subject(**fields: object) -> Subject:
    return Subject(Request(**fields), dict(os.environ))  # type: ignore[arg-type]


def states(rows: object) -> list[tuple[str, str]]:
    return [(row.check, row.state) for row in rows]  # type: ignore[attr-defined]


# ---- commands


def test_a_command_that_hangs_gives_no_answer_although_its_child_keeps_the_output(
    bin_folder: Path,
) -> None:
    program = write_program(
        bin_folder / "hangs", "#!/bin/sh\necho begun\nsleep 5 &\nexec sleep 600\n"
    )
    with pytest.raises(command.NoAnswerError, match=r"hangs did not end in 1 s; it said begun"):
        command.run([str(program)], os.environ, seconds=1.0)


def test_a_daemon_that_is_left_behind_does_not_keep_us_waiting(bin_folder: Path) -> None:
    program = write_program(bin_folder / "leaves", "#!/bin/sh\nsleep 20 &\necho $!\nexit 3\n")
    answer = command.run([str(program)], os.environ, seconds=10.0)
    os.kill(int(answer.text), 9)
    assert answer.code == 3


def test_a_missing_command_gives_no_answer() -> None:
    with pytest.raises(command.NoAnswerError, match="cannot be run: No such file"):
        command.run(["/nonexistent/x"], os.environ, seconds=1.0)


# ---- Slurm

SCONTROL = """#!/bin/sh
case "$*" in
  ping) echo "Slurmctld(primary) at head is {up}" ;;
  "show config") echo "KillWait                = 30 sec"
    echo "MpiDefault              = {mpi}"
    echo "AccountingStorageType   = accounting_storage/none" ;;
esac
"""


def install_slurm(folder: Path, *, up: str = "UP", mpi: str = "pmix") -> None:
    write_program(folder / "sbatch", "#!/bin/sh\necho slurm 23.02.7\n")
    write_program(folder / "sacct", "#!/bin/sh\n")
    write_program(folder / "srun", "#!/bin/sh\nprintf 'MPI types are...\\nnone\\npmix\\n' >&2\n")
    write_program(folder / "scontrol", SCONTROL.format(up=up, mpi=mpi))


def test_slurm_is_asked_and_its_settings_compared(bin_folder: Path) -> None:
    install_slurm(bin_folder)
    rows = list(slurm.slurm(subject(strategy="horovod", kill_wait_s=30)))
    assert states(rows) == [
        ("Slurm", OK),
        ("controller", OK),
        ("KillWait", OK),
        ("accounting", WARN),
        ("srun --mpi", OK),
    ]
    assert rows[0].found == "slurm 23.02.7"


def test_a_machine_without_slurm_is_one_row(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(bin_folder))
    assert states(slurm.slurm(subject())) == [("Slurm", NOT_CHECKED)]


# ---- hpcprof


def test_the_hpcprof_of_hpctoolkit_is_told_from_ours(bin_folder: Path) -> None:
    assert states(this_hpcprof.name_clash(subject())) == [("command hpcprof", OK)]
    write_program(bin_folder / "hpcprof", "#!/bin/sh\necho HPCToolkit\n")
    (row,) = this_hpcprof.name_clash(subject())
    assert (row.state, "hpcprof-dl" in row.advice) == (WARN, True)
    ours = f"#!{sys.executable}\nfrom hpcprof.__main__ import main\n"
    write_program(bin_folder / "hpcprof", ours)
    assert states(this_hpcprof.name_clash(subject())) == [("command hpcprof", OK)]


def test_an_interpreter_without_hpcprof_fails(bin_folder: Path) -> None:
    bare = write_program(bin_folder / "python3.99", "#!/bin/sh\necho No module; exit 1\n")
    (row,) = this_hpcprof.this_hpcprof(subject(interpreter=str(bare)))
    assert (row.state, "No module" in row.found) == (FAIL, True)
    (row,) = this_hpcprof.this_hpcprof(subject(interpreter=sys.executable))
    assert row.state == OK


# ---- scratch and output


def scratch_rows(tmpdir: Path) -> list[Row]:
    return list(node.scratch(Subject(Request(), {**os.environ, "TMPDIR": str(tmpdir)})))


def test_a_usable_scratch_folder_is_ok(tmp_path: Path) -> None:
    short = Path("/dev/shm") / f"hp{os.getpid()}"
    short.mkdir()
    try:
        (row,) = scratch_rows(short)
        assert (row.state, row.found.split(",")[0]) in [
            (state, f"{short}/hpcprof-{os.getuid()}") for state in (OK,)
        ] or (row.state == WARN and "free" in row.found)
        assert not list((short / f"hpcprof-{os.getuid()}").glob("doctor-*"))
    finally:
        (short / f"hpcprof-{os.getuid()}").rmdir()
        short.rmdir()


def test_a_tmpdir_that_does_not_exist_is_told_with_what_is_taken_instead(tmp_path: Path) -> None:
    (row,) = scratch_rows(tmp_path / "nowhere")
    assert row.state == WARN
    assert "No such file or directory" in row.found
    assert f"hpcprof-{os.getuid()} is taken instead" in row.found


def test_a_scratch_path_too_long_for_sockets_fails(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    (row,) = scratch_rows(deep)
    assert (row.state, "too long" in row.found) == (FAIL, True)


def test_an_output_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    wanted = tmp_path / "runs" / "deep"
    (row,) = output_folder.from_here(subject(output_dir=str(wanted)))
    assert row.state in (OK, WARN)
    assert str(wanted) in row.found
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    row = output_folder.judge_folder(tmp_path / "gone", tmp_path)
    assert (row.state, "No such file" in row.found) == (FAIL, True)


def test_an_output_folder_in_which_nothing_can_be_deleted_either_fails() -> None:
    # deleting raises something else than "not found", as on a read-only file system
    row = output_folder.judge_folder(Path("/dev/null"), Path("/runs"))
    assert (row.state, row.found) == (FAIL, "/dev/null: Not a directory")


def test_a_probe_that_cannot_be_written_does_not_stay_empty(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as a quota that is used up
    try:
        with pytest.raises(OSError, match="File too large"):
            output_folder.leave_probe(tmp_path, "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_sees_another_folder_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_folder, "_VISIBLE_SECONDS", 0.0)
    probe = output_folder.leave_probe(tmp_path, "token")
    request = Request(output_dir=str(tmp_path), probe=str(probe), token="token")
    (row,) = output_folder.from_the_node(Subject(request, {}, on_node=True))
    assert row.state in (OK, WARN)
    request = request._replace(token="another")
    (row,) = output_folder.from_the_node(Subject(request, {}, on_node=True))
    assert (row.state, "not the folder" in row.found) == (FAIL, True)


# ---- nsys


def test_nsys_is_found_and_understood(tmp_path: Path) -> None:
    program = fake_nsys(tmp_path / "nsys", "exit 1")
    (row,) = nsys.found(subject(nsys_path=str(program), nsys_trace=["nvtx", "mpi"]))
    assert (row.state, row.found) == (OK, f"2022.4.2.1, {program}")
    (row,) = nsys.found(subject(nsys_path=str(program), nsys_trace=["nvtx", "quantum"]))
    assert (row.state, "does not know trace: quantum" in row.found) == (WARN, True)


@pytest.mark.parametrize(
    ("profiler", "state"), [("auto", WARN), ("nsys", FAIL), ("none", NOT_CHECKED)]
)
def test_a_missing_nsys_matters_as_much_as_the_spec_says(
    bin_folder: Path, profiler: str, state: str
) -> None:
    (row,) = nsys.found(subject(profiler=profiler))
    assert row.state == state


def test_an_nsys_that_is_not_understood_fails(bin_folder: Path) -> None:
    program = write_program(bin_folder / "nsys", "#!/bin/sh\necho nothing\n")
    (row,) = nsys.found(subject(nsys_path=str(program)))
    assert (row.state, "lists no trace kinds" in row.found) == (FAIL, True)


def test_a_hanging_list_of_sessions_is_an_earlier_start_that_hangs(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "_SECONDS", 0.5)
    monkeypatch.setattr(nsys, "_SHM", bin_folder)
    (bin_folder / "NSys-2022.4").touch()
    program = write_program(bin_folder / "nsys", "#!/bin/sh\nexec sleep 600\n")
    (row,) = nsys.sessions(subject(nsys_path=str(program)))
    assert row.state == FAIL
    assert f"rm {bin_folder}/NSys-2022.4" in row.advice


# ---- the training's environment


def prepared(**fields: object) -> environment.Environment:
    return environment.prepare(Request(**fields), os.environ)  # type: ignore[arg-type]


def test_activation_and_variables_make_the_training_s_environment(bin_folder: Path) -> None:
    made = prepared(
        activations=[f"export COLOUR='a b'; cd {bin_folder}", "PATH=/opt/x:$PATH"],
        env={"LATER": "$HOME 'quoted'\nline"},
    )
    assert made.environ["COLOUR"] == "a b"
    assert made.environ["PATH"].startswith("/opt/x:")
    assert made.environ["LATER"] == "$HOME 'quoted'\nline"
    assert states(made.rows) == [("environment", OK)]


def test_problems_on_the_way_are_told_as_the_job_takes_them(bin_folder: Path) -> None:
    made = prepared(
        workdir="/nonexistent", modules=["cuda/99"], profile_modules=["nsys"], activations=["false"]
    )
    assert [row.state for row in made.rows] == [FAIL, FAIL, WARN, WARN]
    assert "module load cuda/99 failed" in made.rows[1].found


def test_an_activation_that_ends_the_shell_is_not_checked() -> None:
    made = prepared(activations=["exit 3"])
    assert states(made.rows) == [("environment", NOT_CHECKED)]
    assert made.environ["PATH"] == os.environ["PATH"]


def test_an_activation_that_hangs_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_SECONDS", 1.5)
    pids = tmp_path / "pids"
    starts = f"sleep 600 & echo $! >> {pids}; setsid sleep 600 & echo $! >> {pids}; wait"
    assert states(prepared(activations=[starts]).rows) == [("environment", NOT_CHECKED)]
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    wait_until(lambda: all(processes.start_ticks(pid) is None for pid in started))


def test_a_daemon_of_an_activation_lives_as_long_as_the_checks(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    made = prepared(activations=[f"setsid sleep 600 & echo $! > {pids}"])
    assert states(made.rows) == [("environment", OK)]
    assert [name for name in made.environ if name.startswith("HPCPROF_DOCTOR")] == []
    pid = int(pids.read_text())
    assert processes.start_ticks(pid) is not None
    environment.end_daemons()
    assert processes.start_ticks(pid) is None


def test_what_an_activation_prints_is_not_taken_for_variables() -> None:
    assert states(prepared(activations=["echo FAKE=1; env -0"]).rows) == [("environment", OK)]


def python_of(**fields: object) -> tuple[tuple[str, ...], str]:
    words, assumed = environment.find_python(Request(**fields), os.environ)  # type: ignore[arg-type]
    return tuple(words), assumed


def test_the_python_is_that_of_the_command(bin_folder: Path) -> None:
    python = write_program(bin_folder / "python", "#!/bin/sh\n")
    assert python_of(command=["python", "train.py"]) == ((str(python),), "")
    assert python_of(command=["bin/python"], workdir=str(bin_folder.parent)) == (
        (f"{bin_folder.parent}/bin/python",),
        "",
    )
    assert python_of(command=["/nonexistent/python3.11", "train.py"]) == ((), "")
    assert python_of(python="/by/hand") == (("/by/hand",), "")


def test_a_guessed_python_says_that_it_is_one(bin_folder: Path) -> None:
    python = write_program(bin_folder / "python", "#!/bin/sh\n")
    words, assumed = python_of(command=["bash", "run.sh"])
    assert words == (str(python),)
    assert assumed.startswith("the command starts with bash")
    assert python_of()[1].startswith("no job spec")


def test_the_python_in_a_container_is_reached_through_its_runtime(bin_folder: Path) -> None:
    words = ["apptainer", "exec", "--nv", "/images/tf.sif"]
    fields = {"container": "apptainer", "container_words": words}
    assert python_of(command=["python", "train.py"], **fields) == ((), "")
    write_program(bin_folder / "apptainer", "#!/bin/sh\n")
    assert python_of(command=["python", "train.py"], **fields) == ((*words, "python"), "")
    assert python_of(command=["bash"], **fields)[0] == (*words, "python3")


def test_a_pyxis_container_is_not_entered() -> None:
    words, assumed = python_of(command=["python", "train.py"], container="pyxis")
    assert (words, "does not enter" in assumed) == ((), True)


# ---- programs for the training's Python


def test_answers_are_found_among_what_libraries_print() -> None:
    printed = f'a warning\n{programs.MARK}{{"a": 1}}\nmore{programs.MARK}{{"b": 2}}\n'
    assert programs.answers(printed + f"{programs.MARK}broken\n") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("built", "wanted"),
    [
        ("('cuda_version', '12.2'), ('cudnn_version', '8')", "12"),
        ("('cuda_version', '11.8')", "11.8"),
        ("('is_cuda_build', False)", None),
    ],
)
def test_libcupti_is_looked_for_as_tensorflow_was_built(
    tmp_path: Path, built: str, wanted: str | None
) -> None:
    folder = tmp_path / "tensorflow" / "python" / "platform"
    folder.mkdir(parents=True)
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('not for this')")
    (folder / "build_info.py").write_text(f"build_info = OrderedDict([{built}])")
    argv = [sys.executable, "-c", programs.text_of("libraries")]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (found,) = programs.answers(command.run(argv, environ, seconds=20.0).text)
    assert found["wanted"] == wanted


@pytest.mark.parametrize("name", ["packages", "ranges", "libraries", "world"])
def test_programs_mark_their_answers_as_they_are_looked_for(name: str) -> None:
    assert f'MARK = "{programs.MARK}"' in programs.text_of(name)


def test_the_packages_of_a_python_are_listed_without_tensorflow() -> None:
    argv = [sys.executable, "-c", programs.text_of("packages")]
    (found,) = programs.answers(command.run(argv, os.environ, seconds=20.0).text)
    assert found["version"] == list(sys.version_info[:3])
    assert found["packages"]["psutil"]
    assert found["packages"]["tensorflow"] is None


SLOW = (
    "import json, sys, time\nprint('{mark}' + json.dumps({first}), flush=True)\ntime.sleep(600)\n"
)


def slow_program(monkeypatch: pytest.MonkeyPatch, first: dict[str, object] | None) -> Subject:
    """The training's Python answers ``first`` and then takes for ever."""
    text = SLOW.format(mark=programs.MARK, first=first) if first else "import time; time.sleep(600)"
    monkeypatch.setattr(programs, "text_of", lambda _: text)
    monkeypatch.setattr(training, "_SECONDS", 1.5)
    environ = {**os.environ, "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    subject = Subject(Request(strategy="horovod"), environ, (sys.executable,), on_node=True)
    return subject._replace(ranks_until=time.monotonic() + 1.5)


def test_an_import_that_takes_too_long_keeps_what_was_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = {"tensorflow": "2.15.1", "horovod": "0.28.1", "nvtx": "0.2.11"}
    first = {"version": [3, 11, 7], "executable": "/x/python", "packages": packages}
    rows = list(training.environment(slow_program(monkeypatch, first)))
    assert states(rows)[:4] == [
        ("Python", OK),
        ("TensorFlow", NOT_CHECKED),
        ("Horovod", NOT_CHECKED),
        ("package nvtx", OK),
    ]
    assert "no end within 2 s" in rows[1].found


def test_a_python_too_slow_to_say_anything_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(command.NoAnswerError, match="did not end in 2 s"):
        list(training.environment(slow_program(monkeypatch, None)))


def test_a_node_that_waits_in_mpi_does_not_know_whether_the_others_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "_package", lambda *_: "mpi4py")
    (row,) = mpi.world(slow_program(monkeypatch, {"by": "mpi4py"}))
    assert (row.state, mpi.is_waiting(row)) == (NOT_CHECKED, True)
    assert "other nodes may still have been at their checks" in row.found
    with pytest.raises(command.NoAnswerError):
        list(mpi.world(slow_program(monkeypatch, None)))


def test_an_mpi_that_started_is_judged_although_its_end_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "_package", lambda *_: "mpi4py")
    first = {"by": "mpi4py", "rank": 0, "size": 2}
    (row,) = mpi.world(slow_program(monkeypatch, first))
    assert (row.state, row.found) == (OK, "mpi4py.size() is 2, as many as tasks")


OMPI = """[node1:24577] OPAL ERROR: Unreachable in file pmix3x_client.c at line 111
The application appears to have been direct launched using "srun",
but OMPI was not built with SLURM's PMI support.
[node1:24577] Local abort before MPI_INIT completed
"""


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (OMPI, "OPAL ERROR: Unreachable in file pmix3x_client.c at line 111"),
        ("[node1:3] a\n[node2:4] Local abort\n", "Local abort"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_of_a_failed_start_is_the_same_on_all_nodes(printed: str, expected: str) -> None:
    assert mpi.reason(printed) == expected
