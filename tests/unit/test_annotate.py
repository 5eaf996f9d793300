"""annotate: what it writes, that it is silent without the launcher, and that it never raises."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import pytest

from hpcprof.artifacts import rank_env, rank_state
from hpcprof.readers.spans_reader import read_span_file
from hpcprof.trace import columns as c
from tests.unit import annotated
from tests.unit.annotated import run

pytestmark = pytest.mark.unit

TWO_STEPS = """
for batch in annotate.data(["a", "b"]):
    with annotate.step():
        with annotate.phase("forward"):
            time.sleep(0.002)
        with annotate.phase("allreduce", 4096):
            pass
        with annotate.span("logging"):
            pass
"""


def test_steps_phases_and_input_are_recorded_with_their_step(tmp_path):
    done = run(TWO_STEPS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    records = read_span_file(tmp_path / "spans.bin", rank=3)
    spans = records.spans
    found = list(zip(spans[c.NAME], spans[c.STEP], strict=True))
    expected = ["input", "step", "forward", "allreduce", "logging"]
    assert sorted(found) == sorted((name, step) for step in (0, 1) for name in expected)
    forward = spans[spans[c.NAME] == "forward"]
    assert (forward[c.END_NS] - forward[c.START_NS]).min() >= 2_000_000
    assert spans[spans[c.NAME] == "allreduce"][c.BYTES].tolist() == [4096, 4096]
    assert len(records.anchors) == 2  # at the start and at the end
    assert records.warnings == ()


def test_calls_are_loaded_at_the_first_one_and_others_do_not_exist():
    code = """
from hpcprof.annotate import phase, step
print(step is annotate.step, phase is annotate.phase, hasattr(annotate, "steps"))
print([name for name in annotate.__all__ if not callable(getattr(annotate, name))])
"""
    assert run(code, None).stdout == "True True False\n[]\n"


def test_nothing_is_written_and_data_is_untouched_without_the_launcher(tmp_path):
    code = f"os.chdir({str(tmp_path)!r})\n{TWO_STEPS}"
    done = run(code + "print(annotate.is_active(), list(annotate.data([1, 2])))", None)
    assert (done.stdout.strip(), done.stderr) == ("False [1, 2]", "")
    assert list(tmp_path.iterdir()) == []


def test_sigkill_loses_at_most_the_current_step(tmp_path):
    code = """
for number in range(5):
    with annotate.step():
        if number == 3:
            os.kill(os.getpid(), 9)
"""
    assert run(code, tmp_path).returncode == -9
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    assert spans[spans[c.KIND] == c.STEP_KIND][c.STEP].tolist() == [0, 1, 2]


def test_a_forked_child_does_not_write(tmp_path):
    code = """
with annotate.step():
    pass
if os.fork() == 0:
    with annotate.step(77):
        pass
    annotate.close()
    sys.exit(0)
os.wait()
with annotate.step():
    pass
"""
    assert run(code, tmp_path).returncode == 0
    records = read_span_file(tmp_path / "spans.bin", rank=3)
    assert records.spans[c.STEP].tolist() == [0, 1]
    assert records.warnings == ()


def test_a_second_training_of_the_rank_is_not_recorded_and_says_so(tmp_path):
    state = tmp_path / "state"
    run("with annotate.step(): pass", tmp_path, state)
    first = annotated.header_pid(tmp_path)
    before = (tmp_path / "spans.bin").read_bytes()
    done = run("with annotate.step(5): print(annotate.is_active(), os.getpid())", tmp_path, state)
    active, second = done.stdout.split()
    assert active == "False"
    assert (tmp_path / "spans.bin").read_bytes() == before
    assert annotated.notes(state) == [
        f"process {second} is not recorded: an earlier process of this rank ({first}, ended) "
        "has its records in spans.bin"
    ]


START_ANOTHER = """
import subprocess
with annotate.step():
    subprocess.run([sys.executable, "-c", os.environ["CHILD"]], check=True)
"""


def test_what_the_training_starts_stays_silent(tmp_path):
    state = tmp_path / "state"
    child = (
        "from hpcprof import annotate\nwith annotate.phase('input'): print(annotate.is_active())"
    )
    done = run(START_ANOTHER, tmp_path, state, CHILD=child)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert [each.name for each in annotated.records(tmp_path)] == ["beacon", "step", "beacon"]
    assert annotated.notes(state) == []


def test_steps_marked_beside_the_training_are_not_lost_in_silence(tmp_path):
    state = tmp_path / "state"
    child = "from hpcprof import annotate\nimport os\nwith annotate.step(): print(os.getpid())"
    done = run(START_ANOTHER, tmp_path, state, CHILD=child)
    assert annotated.notes(state) == [
        f"process {done.stdout.strip()} marks steps and is not recorded: process "
        f"{annotated.header_pid(tmp_path)}, which started it, is taken for the training "
        "(it loaded TensorFlow or marks steps)"
    ]
    assert list(annotated.steps(tmp_path)) == [0]


def test_the_process_that_a_wrapper_starts_is_recorded(tmp_path):
    """An owner that has ended, or that is the process itself after an exec, keeps nobody out."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    run("with annotate.step(): pass", tmp_path, **{rank_env.OWNER: gone.stdout.decode().strip()})
    assert list(annotated.steps(tmp_path)) == [0]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_worker_that_calls_first_does_not_take_the_file(tmp_path, method):
    script = tmp_path / "train.py"
    script.write_text(f"""
import multiprocessing, os
from hpcprof import annotate

def load(number):
    with annotate.phase("input"):
        pass
    with annotate.step(number):
        return annotate.is_active()

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(load, [100, 101]))
        with annotate.step(7):
            print(pool.map(load, [102, 103]))
    print(os.getpid())
""")
    state = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, script],
        env=annotated.environ(tmp_path, state),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    *seen, pid = done.stdout.splitlines()
    assert seen == ["[False, False]"] * 2
    assert annotated.header_pid(tmp_path) == int(pid)
    assert [each.name for each in annotated.records(tmp_path)] == ["beacon", "step", "beacon"]
    assert annotated.notes(state) == []


def test_a_training_in_a_process_of_its_own_is_recorded(tmp_path):
    """Done to give GPU memory back: the script only starts and waits."""
    code = """
import multiprocessing
def train():
    with annotate.step():
        print(os.getpid(), flush=True)
training = multiprocessing.get_context("fork").Process(target=train)
training.start()
training.join()
"""
    done = run(code, tmp_path)
    assert annotated.header_pid(tmp_path) == int(done.stdout)
    assert list(annotated.steps(tmp_path)) == [0]


FAKE_HOROVOD = """
SIZE = {size}
def size():
    if SIZE is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return SIZE
"""


@pytest.mark.parametrize("size", [4, 1, 2, None])
def test_horovod_that_sees_fewer_ranks_than_the_step_has_is_told(tmp_path, size):
    state = tmp_path / "state"
    code = f"""
import types
for name in ("horovod", "horovod.tensorflow", "horovod.tensorflow.keras"):
    sys.modules[name] = types.ModuleType(name)
exec({FAKE_HOROVOD.format(size=size)!r}, vars(sys.modules["horovod.tensorflow.keras"]))
exec({FAKE_HOROVOD.format(size=size)!r}, vars(sys.modules["horovod.tensorflow"]))
for _ in range(3):
    with annotate.step():
        pass
"""
    done = run(code, tmp_path, state, **{rank_env.WORLD_SIZE: "4"})
    advice = "MPI and srun do not fit together; try srun --mpi=pmix\n"
    alone = "the ranks train alone, each on its own model. "
    said = {
        1: f"hpcprof: rank 3: Horovod sees 1 rank(s), the job step has 4: {alone}{advice}",
        2: f"hpcprof: rank 3: Horovod sees 2 rank(s), the job step has 4: {advice}",
    }
    assert done.stderr == said.get(size, "")
    assert rank_state.find(state, rank_state.HOROVOD_SIZE) == (str(size) if size else None)


def test_a_module_that_is_no_horovod_is_no_error(tmp_path):
    code = "import types\nsys.modules['horovod.keras'] = types.ModuleType('x')\n" + TWO_STEPS
    done = run(code, tmp_path, tmp_path / "state", **{rank_env.WORLD_SIZE: "4"})
    assert (done.returncode, done.stderr) == (0, "")


FAKE_NVTX = """
class annotate:
    def __init__(self, message, domain):
        message.encode()
    def __enter__(self):
        pass
    def __exit__(self, *exception):
        pass
def mark(message, domain):
    pass
"""


def test_the_version_of_the_trainings_nvtx_is_told(tmp_path):
    """Package nvtx from 0.2.12 on and nsys 2022 do not understand each other."""
    packages = tmp_path / "packages"
    (packages / "nvtx-0.2.11.dist-info").mkdir(parents=True)
    (packages / "nvtx-0.2.11.dist-info" / "METADATA").write_text("Name: nvtx\nVersion: 0.2.11\n")
    (packages / "nvtx.py").write_text(FAKE_NVTX)
    state = tmp_path / "state"
    path = annotated.environ(None)["PYTHONPATH"]
    env = {"PYTHONPATH": f"{packages}:{path}"}
    assert run(TWO_STEPS, tmp_path, state, **env).stderr == ""
    assert rank_state.find(state, rank_state.NVTX_VERSION) is None  # nobody listens
    (tmp_path / "spans.bin").unlink()
    assert run(TWO_STEPS, tmp_path, state, **{rank_env.NVTX: "1"}, **env).stderr == ""
    assert rank_state.find(state, rank_state.NVTX_VERSION) == "0.2.11"


def test_an_unwritable_folder_is_noted_and_the_training_goes_on(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    done = run(TWO_STEPS + "print('trained')", tmp_path / "absent", state)
    assert (done.stdout.strip(), done.stderr) == ("trained", "")
    note = (state / "annotate-error").read_text()
    assert note == f"spans were not recorded: No such file or directory ({tmp_path / 'absent'})\n"


def test_a_write_error_ends_recording_once_and_not_the_training(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    # a limit on the size of files gives EFBIG, as a full disk gives ENOSPC
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with annotate.step():
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
for _ in range(20):
    with annotate.step():
        pass
print("trained")
"""
    done = run(code, tmp_path, state)
    assert (done.stdout.strip(), done.stderr) == ("trained", "")
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    # header, beacon name (2 blocks), beacon, step name (2 blocks), then steps up to 400 bytes
    assert spans[c.STEP].tolist() == [0, 1, 2, 3]
    note = (state / "annotate-error").read_text()
    assert note == f"recording of spans stopped: File too large ({tmp_path}/spans.bin)\n"


def test_an_exception_in_a_step_passes_and_the_step_is_kept(tmp_path):
    done = run("with annotate.step():\n    raise KeyError('mine')", tmp_path)
    assert "KeyError: 'mine'" in done.stderr
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    assert spans[c.STEP].tolist() == [0]


def test_phases_timed_elsewhere_and_impossible_ones(tmp_path):
    code = """
with annotate.step(4):
    annotate.record_phase("backward", 1000, 3000)
    annotate.record_phase("forward", 3000, 1000)
"""
    assert run(code, tmp_path).returncode == 0
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    phases = spans[spans[c.KIND] == c.PHASE_KIND]
    assert phases[[c.NAME, c.START_NS, c.END_NS, c.STEP]].values.tolist() == [
        ["backward", 1000, 3000, 4]
    ]


ODD_ARGUMENTS = """
class Odd:
    def __str__(self):
        raise ValueError("no text")
with annotate.step(2**31):
    pass
with annotate.step("the first"):
    pass
with annotate.step(5.0):
    with annotate.phase("allreduce", nbytes=1025 / 2):
        pass
    for name in (7, ["a", "list"], "of bytes \\udcff", Odd()):
        with annotate.phase(name):
            pass
    annotate.record_phase("forward", 1.0, 2.6)
    for start, end, size in ((None, 3, 0), (1, float("nan"), 0), (1, 2, "MB"), (1, 2**70, 0)):
        annotate.record_phase("backward", start, end, size)
with annotate.step():
    pass
print("trained")
"""


@pytest.mark.parametrize("listens", ["", "1"])
def test_arguments_that_no_record_can_hold_do_not_reach_the_training(tmp_path, listens):
    """They pass without hpcprof, so they pass with it; what can be recorded is."""
    state = tmp_path / "state"
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "nvtx.py").write_text(FAKE_NVTX)
    path = f"{tmp_path / 'packages'}:{annotated.environ(None)['PYTHONPATH']}"
    done = run(ODD_ARGUMENTS, tmp_path, state, **{rank_env.NVTX: listens, "PYTHONPATH": path})

    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert list(annotated.steps(tmp_path)) == [5, 6]
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    phases = spans[spans[c.KIND] == c.PHASE_KIND]
    names = ["7", "Odd", "['a', 'list']", "allreduce", "forward", "of bytes \\udcff"]
    assert sorted(phases[c.NAME]) == names
    assert phases[phases[c.NAME] == "allreduce"][c.BYTES].tolist() == [512]
    forward = phases[phases[c.NAME] == "forward"]
    assert forward[[c.START_NS, c.END_NS]].values.tolist() == [[1, 3]]
    (note,) = annotated.notes(state)
    assert note.startswith("a record was left out: step of step 2147483648: ")


def test_threads_do_not_lose_records(tmp_path):
    code = """
import threading
def work():
    for _ in range(2000):
        with annotate.span("load"):
            pass
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
for _ in range(50):
    with annotate.step():
        time.sleep(0.001)
[t.join() for t in threads]
"""
    assert run(code, tmp_path).returncode == 0
    spans = read_span_file(tmp_path / "spans.bin", rank=3).spans
    assert (spans[c.NAME] == "load").sum() == 8000


# a profile function runs where a signal handler could: here at each call, return and call of C
EVERYWHERE = """
import collections, signal
from hpcprof.annotate import recorder, session
signal.alarm(20)  # ends a training that waits for a lock
FILES = (recorder.__file__, session.__file__)
names = (f"seen {number}" for number in range(10**6))
seen = []
places = set()
def interrupt(frame, event, what):
    place = (frame.f_code, frame.f_lasti, event, session._session is None)
    if frame.f_code.co_filename in FILES and place not in places:
        places.add(place)
        handle(event, what)
"""


def test_a_signal_handler_that_records_may_come_at_any_time(tmp_path):
    code = """
def handle(event, what):
    seen.append(annotate.is_active())
    with annotate.span(next(names)):
        annotate.beacon()
    if session._session is not None:
        session._session.recorder.flush()
sys.setprofile(interrupt)
for _ in range(3):
    with annotate.step():
        with annotate.phase("forward"):
            pass
annotate.close()
sys.setprofile(None)
print(collections.Counter(seen))
"""
    state = tmp_path / "state"
    done = run(EVERYWHERE + code, tmp_path, state)

    assert (done.returncode, done.stderr, annotated.notes(state)) == (0, "", [])
    found = annotated.records(tmp_path)  # each name is declared before its use, under its own id
    assert [each.step for each in found if each.name == "step"] == [0, 1, 2]
    assert [each.step for each in found if each.name == "forward"] == [0, 1, 2]
    seen = [each.name for each in found if each.name.startswith("seen ")]
    assert len(set(seen)) == len(seen) > 50
    assert f"True: {len(seen)}" in done.stdout
    beacons = [each.step for each in found if each.name == "beacon"]
    assert sorted(beacons) == list(range(len(beacons)))


def test_a_signal_handler_that_closes_or_raises_loses_no_record(tmp_path):
    code = """
class Stop(Exception):
    pass
def handle(event, what):
    if event == "c_call" and what is os.write and session._session.next_step == 2:
        sys.setprofile(None)
        if os.environ["BY"] == "close":
            annotate.close()
        else:
            raise Stop
for number in range(3):
    try:
        with annotate.step():
            if number == 1:
                sys.setprofile(interrupt)
    except Stop:
        print("stopped")
"""
    for by, expected in (("close", [0, 1]), ("raise", [0, 1, 2])):
        folder = tmp_path / by
        folder.mkdir()
        done = run(EVERYWHERE + code, folder, BY=by)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == ("stopped\n" if by == "raise" else "")
        assert list(annotated.steps(folder)) == expected
        assert annotated.records(folder)[-1].name == "beacon"
