"""annotate: what it writes, that it is silent without the launcher, and that it never raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcprof
from hpcprof.artifacts import rank_env
from hpcprof.readers.spans_reader import read_span_file
from hpcprof.trace import columns as c

pytestmark = pytest.mark.unit

PREAMBLE = "from hpcprof import annotate\nimport os, sys, time\n"


def run(code: str, folder: Path | None, state: Path | None = None, **options):
    """Run a training script in a process of its own, as the launcher would."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HPCPROF_")}
    env["PYTHONPATH"] = os.path.dirname(os.path.dirname(hpcprof.__file__))
    if folder is not None:
        env.update({rank_env.RANK_FOLDER: str(folder), rank_env.RANK: "3"})
    if state is not None:
        env[rank_env.STATE_FOLDER] = str(state)
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


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


def test_nothing_is_written_and_data_is_untouched_without_the_launcher(tmp_path):
    code = TWO_STEPS + "print(annotate.is_active(), list(annotate.data([1, 2])))"
    done = run(code, None, cwd=tmp_path)
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


def test_a_second_process_of_the_rank_stays_silent(tmp_path):
    run("with annotate.step(): pass", tmp_path)
    before = (tmp_path / "spans.bin").read_bytes()
    done = run("with annotate.step(5): print(annotate.is_active())", tmp_path)
    assert done.stdout.strip() == "False"
    assert (tmp_path / "spans.bin").read_bytes() == before


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
