"""The start of every Python of the job: the training is found, everything else is as before."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.annotate import startup
from hpcprof.artifacts import rank_env, rank_state
from hpcprof.launch import state_folder
from tests.unit import annotated, launching

pytestmark = pytest.mark.unit


class Job:
    """A rank's folders, as the launcher makes them, with a package that is called tensorflow."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state"
        self.rank = root / "rank"
        self.packages = root / "packages"
        for folder in (self.state, self.rank, self.packages):
            folder.mkdir()
        self.lib = state_folder.link_package(self.state)
        (self.packages / "tensorflow.py").write_text("")

    def environ(self, *path: Path, **more: str) -> dict[str, str]:
        """The environment with these folders behind ours on PYTHONPATH."""
        env = annotated.environ(self.rank, self.state, **{rank_env.HANG_AFTER: "600", **more})
        env["PYTHONPATH"] = os.pathsep.join(map(str, (self.lib, *path, self.packages)))
        return env


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def python(
    arguments: list[str], env: dict[str, str], *, executable: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a Python to its end."""
    return subprocess.run(
        [executable, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def without_us(env: dict[str, str]) -> dict[str, str]:
    """The environment that the application would have without hpcprof."""
    _, _, path = env["PYTHONPATH"].partition(os.pathsep)
    kept = {name: value for name, value in env.items() if not name.startswith("HPCPROF_")}
    return {**kept, "PYTHONPATH": path}


LOOK = """
import sys
own = sys.modules.get("sitecustomize")
print(own and (own.__name__, own.__file__, getattr(own, "MARK", None), own.__spec__.origin))
print([entry for entry in sys.path if "state" not in entry])
"""

SITES = {
    "works": "MARK = __name__\nprint('the site was here')\n",
    "changes the path": "import sys\nsys.path.insert(0, '/site')\nsys.path.append('/last')\n",
    "raises": "raise ValueError('mine')\n",
    "lacks a module": "import no_such_module\n",
    "lacks one like itself": "raise ImportError('none', name='sitecustomize')\n",
    "has no syntax": "def (:\n",
    "leaves": "import sys\nsys.exit(4)\n",
}


@pytest.mark.parametrize("site", [None, *SITES])
def test_the_sites_own_sitecustomize_runs_as_without_us(
    tmp_path: Path, job: Job, site: str | None
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    if site is not None:
        (folder / "sitecustomize.py").write_text(SITES[site])
    env = job.environ(folder)
    plain = python(["-c", LOOK], without_us(env))
    ours = python(["-c", LOOK], env)

    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert _without_frames(ours.stderr) == _without_frames(plain.stderr)
    assert ("the site was here" in plain.stdout) == (site == "works")
    assert ("Error in sitecustomize" in plain.stderr) == (
        site in ("raises", "lacks a module", "has no syntax")
    )


def _without_frames(text: str) -> list[str]:
    """Lines of stderr but a traceback's frames, of which there are more with us."""
    return [line for line in text.splitlines() if not line.startswith("  ")]


def _interpreters() -> list[str]:
    found = {sys.executable}
    for version in ("2.7", *(f"3.{minor}" for minor in range(6, 15))):
        found.update(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
        found.update(filter(None, [shutil.which(f"python{version}", path="/usr/bin")]))
    return sorted(found)


@pytest.mark.parametrize("executable", _interpreters())
def test_every_python_of_the_job_starts_as_before(
    tmp_path: Path, job: Job, executable: str
) -> None:
    """Tools of the system are Pythons too, some of them old."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("MARK = __name__\n")
    code = "import sys; print(getattr(sys.modules.get('sitecustomize'), 'MARK', None))"
    for path, mark in (((), "None"), ((folder,), "sitecustomize")):
        env = job.environ(*path)
        plain = python(["-c", code], without_us(env), executable=executable)
        ours = python(["-c", code], env, executable=executable)
        assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
        assert ours.stdout.strip() == mark or path == ()


@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-s", "-B"])
def test_pythons_with_flags_start_as_before(job: Job, flag: str) -> None:
    env = job.environ()
    code = "import sys; print(sorted(n for n in sys.modules if n.startswith('site')))"
    plain = python([flag, "-c", code], without_us(env))
    ours = python([flag, "-c", code], env)

    assert (ours.returncode, ours.stdout, ours.stderr) == (0, plain.stdout, "")


def test_two_launchers_and_one_that_chains_as_we_do_do_not_go_in_circles(
    tmp_path: Path, job: Job
) -> None:
    (tmp_path / "outer").mkdir()
    outer = state_folder.link_package(tmp_path / "outer")
    theirs, site = tmp_path / "theirs", tmp_path / "site"
    for folder in (theirs, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text("print('site')\n")
    (theirs / "sitecustomize.py").write_text(
        "import os, sys\n"
        "print('theirs')\n"
        "sys.path.remove(os.path.dirname(__file__))\n"
        "del sys.modules['sitecustomize']\n"
        "import sitecustomize\n"
    )
    done = python(["-c", "pass"], job.environ(outer, theirs, site))

    assert (done.stdout, done.stderr) == ("theirs\nsite\n", "")


WHO = """
import os, sys, threading
def who():
    return {
        "pid": os.getpid(),
        "owner": os.environ.get("HPCPROF_OWNER_PID"),
        "looks": any(type(f).__module__ == "hpcprof.annotate.startup" for f in sys.meta_path),
        "threads": [thread.name for thread in threading.enumerate()],
        "hpcprof": "hpcprof" in sys.modules,
    }
"""


def test_the_process_that_imports_tensorflow_is_the_training(job: Job) -> None:
    code = (
        "import importlib.util, json; before = [who()]\n"
        "importlib.util.find_spec('tensorflow'); before.append(who())\n"
        "import tensorflow; print(json.dumps([*before, who()]))\n"
    )
    done = python(["-c", WHO + code], job.environ())
    started, asked, trains = json.loads(done.stdout)

    assert done.stderr == ""
    for each in (started, asked):  # whether TensorFlow is installed is asked by many
        assert (each["owner"], each["looks"], each["threads"]) == (None, True, ["MainThread"])
    assert trains["owner"] == str(trains["pid"])
    assert not trains["looks"]
    assert trains["threads"] == ["MainThread", "hpcprof-watchdog"]


def test_nothing_happens_without_the_launcher(job: Job) -> None:
    env = job.environ()
    del env[rank_env.RANK_FOLDER]
    done = python(["-c", WHO + "import json, tensorflow; print(json.dumps(who()))"], env)
    seen = json.loads(done.stdout)

    assert (seen["owner"], seen["threads"], seen["hpcprof"]) == (None, ["MainThread"], False)


def test_what_the_training_starts_does_not_even_load_hpcprof(job: Job) -> None:
    child = WHO + "import json, tensorflow; print(json.dumps(who()))"
    code = f"import subprocess, sys, tensorflow; subprocess.run([sys.executable, '-c', {child!r}])"
    seen = json.loads(python(["-c", code], job.environ()).stdout)

    assert seen["owner"] not in (None, str(seen["pid"]))
    assert (seen["threads"], seen["hpcprof"]) == (["MainThread"], False)


def test_a_training_that_replaces_itself_stays_the_training(job: Job) -> None:
    code = (
        "import json, sys, tensorflow\n"
        "if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
        "print(json.dumps(who()))\n"
    )
    script = job.packages / "train.py"
    script.write_text(WHO + code)
    seen = json.loads(python([str(script)], job.environ()).stdout)

    assert seen["owner"] == str(seen["pid"])
    assert seen["threads"] == ["MainThread", "hpcprof-watchdog"]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_worker_that_imports_tensorflow_first_is_no_training(job: Job, method: str) -> None:
    code = f"""
def load(_):
    import tensorflow
    return who()

if __name__ == "__main__":
    import json, multiprocessing
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        worker = pool.map(load, [0])[0]
    import tensorflow
    print(json.dumps([worker, who()]))
"""
    script = job.packages / "train.py"
    script.write_text(WHO + code)
    done = python([str(script)], job.environ())
    worker, training = json.loads(done.stdout)

    assert done.stderr == ""
    assert worker["owner"] is None
    assert "hpcprof-watchdog" not in worker["threads"]
    assert training["owner"] == str(training["pid"])
    assert "hpcprof-watchdog" in training["threads"]


HANGS = """
import multiprocessing, subprocess, sys, threading, time
import tensorflow

def rests():
    time.sleep(2)

def waits_for_ever(method):
    if method == "sleep":
        rests()
    elif method == "subprocess":
        subprocess.run(["sleep", "2"])
    else:
        process = multiprocessing.get_context(method).Process(target=rests)
        process.start()
        process.join()

if __name__ == "__main__":
    waits_for_ever(sys.argv[1])
    sys.exit(5)
"""


def test_a_script_without_steps_that_stands_still_is_told(job: Job) -> None:
    script = job.packages / "train.py"
    script.write_text(HANGS)
    env = job.environ(**{rank_env.HANG_AFTER: "0.5"})
    done = python([str(script), "sleep"], env)

    assert done.returncode == 5
    stacks = (job.rank / "stacks.txt").read_text()
    assert " in rests\n" in stacks
    assert " in waits_for_ever\n" in stacks
    assert done.stderr.startswith("hpcprof: rank 3: no Python thread has moved for ")
    assert json.loads(rank_state.find(job.state, rank_state.HANG) or "")["step"] == -1


@pytest.mark.parametrize("way", ["subprocess", *multiprocessing.get_all_start_methods()])
def test_a_script_that_waits_for_what_it_started_does_not_hang(job: Job, way: str) -> None:
    script = job.packages / "train.py"
    script.write_text(HANGS)
    env = job.environ(**{rank_env.HANG_AFTER: "0.5"})
    done = python([str(script), way], env)

    assert (done.returncode, done.stderr) == (5, "")
    assert not (job.rank / "stacks.txt").exists()


@pytest.mark.parametrize("works", ["pass", "train_on_batch()"])
def test_a_script_that_works_without_steps_does_not_hang(job: Job, works: str) -> None:
    """Whenever one looks, a loop may be at the same place: where it waits for the device."""
    code = f"""
import tensorflow, time
def train_on_batch():
    time.sleep(0.2)
end = time.monotonic() + 2
while time.monotonic() < end:
    {works}
"""
    done = python(["-c", code], job.environ(**{rank_env.HANG_AFTER: "0.5"}))

    assert (done.returncode, done.stderr) == (0, "")
    assert not (job.rank / "stacks.txt").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], True),
        (["python", "-E", "-c", "from multiprocessing.resource_tracker import main"], True),
        (["python", "-m", "joblib.externals.loky.backend.popen_loky_posix", "--x"], True),
        (["python", "train.py", "--use-multiprocessing"], False),
        (["python", "-c", "import multiprocessing"], False),
        (["python", "-m", "train", "-c", "from multiprocessing."], False),
        (["python"], False),
        ([], False),
    ],
)
def test_workers_are_known_by_their_command_line(words: list[str], expected: bool) -> None:
    assert startup.is_started_by_multiprocessing(words) is expected


def test_the_command_line_is_read_from_proc_before_python_3_10(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = startup.command_line()
    monkeypatch.delattr(sys, "orig_argv")

    assert [word for word in startup.command_line() if word] == [word for word in told if word]
    assert told


def test_its_variables_are_those_of_the_launcher(job: Job) -> None:
    assert (rank_env.RANK_FOLDER, rank_env.OWNER) == (startup._RANK_FOLDER, startup._OWNER)
    text = (job.lib / "sitecustomize.py").read_text()
    assert f'"{rank_env.RANK_FOLDER}"' in text
    assert f'"{rank_env.OWNER}"' in text


def test_a_python_without_tensorflow_loads_three_small_modules_more(job: Job) -> None:
    env = job.environ()
    code = "import sys; print(*sys.modules)"
    plain = python(["-c", code], without_us(env)).stdout.split()
    ours = python(["-c", code], env).stdout.split()

    assert set(ours) - set(plain) <= {
        *("__future__", "hpcprof", "hpcprof.annotate", "hpcprof.annotate.startup")
    }


def test_a_watchdog_that_cannot_start_does_not_stop_the_import(job: Job) -> None:
    """The worst case: hpcprof itself is broken in this Python."""
    code = (
        "import sys, types; sys.modules['hpcprof.annotate.watchdog'] = None\n"
        "import tensorflow; print(tensorflow.__name__)"
    )
    done = python(["-c", code], job.environ())

    assert (done.stdout, done.stderr) == ("tensorflow\n", "")


TRAIN_WITH_WORKERS = """
import json, multiprocessing, os, sys, threading

def load(number):
    import sitecustomize
    from hpcprof import annotate
    for _ in range(50):
        with annotate.phase("input"):
            with annotate.step(1000 + number):
                pass
    names = [thread.name for thread in threading.enumerate()]
    return [os.getpid(), annotate.is_active(), sitecustomize.MARK, "hpcprof-watchdog" in names]

if __name__ == "__main__":
    import sitecustomize
    method, first = sys.argv[1:]
    if first == "training":
        import tensorflow
    with multiprocessing.get_context(method).Pool(2) as pool:
        early = pool.map(load, range(2))
        import tensorflow
        from hpcprof import annotate
        late = []
        for seen in annotate.data(pool.imap(load, range(4))):
            with annotate.step():
                late.append(seen)
    print(json.dumps({"workers": early + late, "pid": os.getpid(), "mark": sitecustomize.MARK,
                      "thread": threading.get_native_id()}))
"""


@pytest.mark.parametrize("first", ["training", "workers"])
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_data_workers_of_a_launched_training_write_nothing(
    tmp_path: Path, method: str, first: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("MARK = 'the site was here'\n")
    (site / "tensorflow.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(TRAIN_WITH_WORKERS)
    env = launching.environ(tmp_path, PYTHONPATH=f"{launching.REPOSITORY}:{site}")
    launching.write_run_json(tmp_path / "run")
    command = [sys.executable, str(script), method, first]
    done = launching.launch(tmp_path / "run", command, "--profiler", "none", env=env)
    seen = json.loads(done.stdout)

    assert (done.returncode, done.stderr) == (0, "")
    assert seen["mark"] == "the site was here"
    pids = {worker[0] for worker in seen["workers"]}
    assert seen["pid"] not in pids
    assert [worker[1:] for worker in seen["workers"]] == [[False, "the site was here", False]] * 6
    folder = tmp_path / "run/ranks/00003"
    assert annotated.header_pid(folder) == seen["pid"]
    spans = [each for each in annotated.records(folder) if each.name != "beacon"]
    assert sorted((each.name, each.step) for each in spans) == [
        *(("input", step) for step in range(4)),
        *(("step", step) for step in range(4)),
    ]
    assert {each.thread for each in spans} == {seen["thread"]}
    assert launching.manifest(tmp_path / "run")["warnings"] == []
