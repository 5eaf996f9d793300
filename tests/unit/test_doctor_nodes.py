"""hpcprof doctor on compute nodes: one srun, rows of each node, and what differs between them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcprof.doctor import CHECKS, compute_nodes, mpi, registry
from hpcprof.doctor import __main__ as node_part
from hpcprof.doctor.configuration import configure
from hpcprof.doctor.diagnosis import Diagnosis, Line, diagnose, merge
from hpcprof.doctor.registry import RANKS, Check
from hpcprof.doctor.row import FAIL, NOT_CHECKED, OK, WARN, Row, not_checked
from hpcprof.doctor.subject import VARIABLE, Request, Subject
from hpcprof.doctor.table import render_text
from hpcprof.errors import InputError, UsageError
from tests.unit.slurm_stubs import write_program

pytestmark = pytest.mark.unit

# runs the command once for each node, as srun does; STUB_SRUN lets it misbehave
SRUN = f"""#!{sys.executable}
import json, os, subprocess, sys, time
how = os.environ.get("STUB_SRUN", "")
words = sys.argv[1:]
first = next(n for n, word in enumerate(words) if not word.startswith("-"))
nodes = int(next(w for w in words[:first] if w.startswith("--nodes=")).split("=")[1])
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(json.dumps(words[:first]) + chr(10))
if how == "refuse":
    sys.exit("srun: error: Unable to allocate resources: Requested nodes are busy")
if how == "broken":
    sys.exit("srun: error: plugin_load: mpi/pmix_v9: not found")
print("a module greets you", flush=True)
tasks = []
for number in range(1 if how == "one" else nodes):
    rank = 0 if how == "alone" else number
    place = {{"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(nodes), "PYTHONWARNINGS": "ignore"}}
    place["SLURMD_NODENAME"] = f"node{{number}}"
    if how == "differ" and number == 1:
        place["TMPDIR"] = "/nonexistent"
    tasks.append(subprocess.Popen(words[first:], env={{**os.environ, **place}}))
for task in tasks:
    task.wait()
if how == "hang":
    time.sleep(600)
"""

SPEC = """
schema: 1
name: cnn
strategy: multiworker
site: generic-slurm
nodes: 2
time: 10
account: mine
partition: gpu
command: python train.py
srun_extra: [--mem-bind=local]
sbatch_extra: [--constraint=a100, --comment=x]
profile: {profiler: none}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job spec, and srun and a Python without packages first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_program(folder / "srun", SRUN)
    write_program(folder / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    for name in [name for name in os.environ if name.startswith(("SLURM", "HPCPROF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "calls"))
    path = tmp_path / "hpcprof.yaml"
    path.write_text(SPEC)
    return path


def ask(spec: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> list[Row]:
    monkeypatch.setenv("STUB_SRUN", how)
    request = configure(spec).request
    return list(compute_nodes.rows(request, os.environ))


def test_srun_gets_the_options_of_the_job_with_one_task_per_node(spec: Path) -> None:
    configuration = configure(spec, srun_extra=["--nodelist=node7"])
    assert configuration.srun_problem == ""
    assert configuration.request.srun == [
        *("--cpus-per-task=1", "--account=mine", "--partition=gpu", "--constraint=a100"),
        *("--export=ALL", "--cpus-per-task=1", "--mem-bind=local", "--nodelist=node7"),
    ]
    argv = compute_nodes._argv(configuration.request)
    assert argv[-4:] == [sys.executable, "-I", "-m", "hpcprof.doctor"]
    assert [word for word in argv if word.startswith(("--nodes", "--ntasks"))] == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
    ]


def test_inside_an_allocation_its_nodes_are_shared(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    request = configure(spec).request
    assert request.nodes == 3
    assert request.srun[:2] == ["--overlap", "--export=ALL"]
    assert "--partition=gpu" not in request.srun


def test_options_that_would_become_the_program_or_change_the_nodes_are_refused(spec: Path) -> None:
    for option in ("rm", "--nodes=4", "-N4"):
        with pytest.raises(UsageError, match="options of srun"):
            configure(spec, srun_extra=[option])


def test_every_node_answers_and_sees_its_own_number(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ask(spec, monkeypatch, "")
    assert {row.node for row in rows} == {"node0", "node1", ""}
    assert [row for row in rows if row.check == "srun"] == [
        Row("srun", OK, "2 tasks on 2 nodes, each with its SLURM_PROCID")
    ]
    for name in ("node0", "node1"):
        checks = [row.check for row in rows if row.node == name]
        assert checks.count("scratch folder") == checks.count("GPU") == 1


@pytest.mark.parametrize(
    ("how", "state", "words"),
    [
        ("refuse", NOT_CHECKED, "no nodes within 30 s"),
        ("broken", FAIL, "no node answered: srun: error: plugin_load"),
        ("one", FAIL, "only 1 of 2 nodes finished (node0)"),
        ("alone", FAIL, "tasks do not see a SLURM_PROCID each: node0: 0, node1: 0"),
    ],
)
def test_an_srun_that_does_not_work_is_told(
    spec: Path, monkeypatch: pytest.MonkeyPatch, how: str, state: str, words: str
) -> None:
    row = ask(spec, monkeypatch, how)[-1]
    assert (row.check, row.state, words in row.found) == ("srun", state, True), row


@pytest.mark.parametrize(
    ("late", "state", "words"),
    [
        ([], FAIL, "all nodes were in it"),
        (["node1"], NOT_CHECKED, "other nodes may still have been at their checks"),
    ],
)
def test_an_mpi_that_did_not_start_fails_only_when_all_nodes_were_in_it(
    spec: Path, monkeypatch: pytest.MonkeyPatch, late: list[str], state: str, words: str
) -> None:
    waited = not_checked("MPI", mpi._WAITED, "Again.")
    slow = not_checked("MPI", "no answer within 9 s", "Again.")
    rows = [(slow if n in late else waited)._replace(node=n) for n in ("node0", "node1")]
    lines = "".join(f"{compute_nodes.MARK}{row.to_line()}\n" for row in rows)
    write_program(spec.parent / "bin" / "srun", f"#!/bin/sh\ncat <<'END'\n{lines}END\n")
    rows = [row for row in ask(spec, monkeypatch, "") if row.check == "MPI"]
    found = {row.node: row for row in rows}
    assert sorted(found) == ["node0", "node1"]
    assert (found["node0"].state, words in found["node0"].found) == (state, True), found
    assert found["node1"].state == state


def test_nodes_wait_in_mpi_for_one_whose_checks_take_all_their_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def when(subject: Subject) -> Iterator[Row]:
        yield Row("MPI", OK, repr(subject.ranks_until))

    monkeypatch.setattr(node_part, "CHECKS", [Check("MPI", "", RANKS, "mpi", 9.0, "", when)])
    monkeypatch.setenv(VARIABLE, Request().to_json())
    started = time.monotonic()
    node_part.main()
    first = capsys.readouterr().out.splitlines()[0].partition(compute_nodes.MARK)[2]
    # both count from the same start, so what a node does not need for itself it waits
    until = float(Row.from_line(first).found) - started
    assert until >= registry.NODE_SECONDS + 30.0
    (real,) = [check for check in CHECKS if check.where == RANKS]
    assert real.limit_s > until - 1.0
    assert compute_nodes.limit_s(Request(wait_s=30)) > 30 + real.limit_s


def test_rows_that_came_before_srun_hung_are_kept(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_nodes, "limit_s", lambda request: 6.0)
    rows = ask(spec, monkeypatch, "hang")
    assert {row.node for row in rows} == {"node0", "node1", ""}
    assert rows[-1].state == FAIL
    assert rows[-1].found.startswith("not ended after 6 s; 2 of 2 nodes answered")


def test_a_whole_diagnosis_with_nodes_that_differ(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_SRUN", "differ")
    found = diagnose(spec, srun=True)
    assert found.nodes == ("node0", "node1")
    states = {(line.row.check, line.nodes): line.row.state for line in found.lines if line.nodes}
    assert states["scratch folder", ("node1",)] == WARN
    assert states["scratch folder", ("node0",)] in (OK, WARN)
    assert ("start lock", ("node0", "node1")) in states
    assert states["output folder", ("node0", "node1")] in (OK, WARN)
    assert states["TensorFlow", ("node0", "node1")] == FAIL
    assert found.exit_code == 4
    assert not list(spec.parent.glob(".hpcprof-doctor*"))
    printed = render_text(found)
    assert "2 compute nodes (node0, node1)" in printed
    assert "node1: scratch folder /nonexistent" in " ".join(printed.split())


def test_a_spec_that_is_wrong_is_a_row_and_the_other_checks_go_on(spec: Path) -> None:
    spec.write_text(SPEC + "nodez: 3\n")
    configuration = configure(spec)
    states = [(row.check, row.state) for row in configuration.rows]
    assert states[0] == ("job spec", FAIL)
    assert "did you mean 'nodes'" in configuration.rows[0].found
    assert configuration.request.strategy is None


def test_a_python_by_hand_is_found_from_where_the_checks_run(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    assert configure(spec, python="bin/python").request.python == f"{spec.parent}/bin/python"
    assert configure(spec, python="python3.9").request.python == "python3.9"


def test_a_spec_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job spec not found"):
        configure(tmp_path / "none.yaml")


def test_a_request_survives_its_way_to_the_node(spec: Path) -> None:
    request = configure(spec).request
    there = Request.from_json(request.to_json())
    assert there.to_json() == request.to_json()
    with pytest.raises(ValueError, match="another version"):
        Request.from_json("{}")


def on(node: str, check: str, found: str, position: int, state: str = OK) -> Row:
    return Row(check, state, found, "Do." if state != OK else "", node, position)


def test_nodes_that_agree_are_one_line_and_others_are_named() -> None:
    rows = [
        on("b", "second", "x", 200),
        on("a", "second", "x", 200),
        on("a", "first", "good", 100),
        on("b", "first", "bad", 100, FAIL),
        Row("here", OK, "y", position=5),
    ]
    assert [(line.row.check, line.row.found, line.nodes) for line in merge(rows)] == [
        ("here", "y", ()),
        ("first", "good", ("a",)),
        ("first", "bad", ("b",)),
        ("second", "x", ("a", "b")),
    ]


def test_a_diagnosis_is_counted_and_its_table_fits_80_columns() -> None:
    lines = (
        Line(Row("clock", OK, "clocksource tsc")),
        Line(Row("x" * 30, NOT_CHECKED, "w" * 300, "Do it " * 40)),
        Line(Row("nsys", WARN, "not on PATH", "Load it."), ("a", "b")),
        Line(Row("MPI", FAIL, "hangs", "Mend it."), ("b",)),
    )
    found = Diagnosis("login", "", "here", lines, ("a", "b"), asked_nodes=True)
    assert found.counts == {FAIL: 1, WARN: 1, NOT_CHECKED: 1, OK: 1}
    printed = render_text(found)
    assert printed.splitlines()[0] == "hpcprof doctor: 1 FAIL, 1 WARN, 1 NOT CHECKED, 1 OK"
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert "\x1b" not in printed
    assert "b: hangs" in printed
    assert "a, b: not on PATH" not in printed  # all nodes: no names
    assert [row["nodes"] for row in found.to_json()["rows"]] == [[], [], ["a", "b"], ["b"]]


def test_without_a_failure_the_exit_code_is_0() -> None:
    lines = (Line(Row("nsys", WARN, "x", "Do.")), Line(Row("GPU", NOT_CHECKED, "x", "Do.")))
    assert Diagnosis("m", "", "s", lines, (), asked_nodes=False).exit_code == 0
