"""hpcprof.yaml: what is read, as written; what is refused, with line, field and a likely fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcprof.config_types import time_limit_s
from hpcprof.errors import InputError, UsageError
from hpcprof.job_spec import JobSpec, load_spec

pytestmark = pytest.mark.unit

SMALL = """\
name: cnn
strategy: horovod
time: 00:15:00
command: python train.py --epochs 3
"""


def load(tmp_path: Path, text: str) -> JobSpec:
    path = tmp_path / "hpcprof.yaml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path)


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path), "DIR")


def test_small_spec_has_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, SMALL)
    assert spec.command == ("python", "train.py", "--epochs", "3")
    assert (spec.nodes, spec.ranks_per_node, spec.gpus_per_node, spec.world_size) == (1, 1, 0, 1)
    assert (spec.site, spec.collect, spec.profile.profiler) == ("auto", True, "auto")


def test_what_is_recorded_and_when_it_ends(tmp_path: Path) -> None:
    profile = load(tmp_path, SMALL).profile
    assert (profile.steps, profile.flush_s, profile.hang_after_s) == (None, 240, 600)
    more = "profile: {steps: 020-59, flush_s: 0, hang_after_s: 0}\n"
    profile = load(tmp_path, SMALL + more).profile
    assert (profile.steps, profile.flush_s, profile.hang_after_s) == ("20-59", 0, 0)
    assert load(tmp_path, SMALL + "profile: {flush_s: 120}\n").profile.flush_s == 120


def test_a_container_is_an_image_and_what_it_sees(tmp_path: Path) -> None:
    assert load(tmp_path, SMALL).container is None
    more = "container: {runtime: pyxis, image: nvcr.io#nvidia/tensorflow:24.01-tf2-py3,\n"
    more += "  mounts: [/data, '/a:/b', '/a:/b:ro+rprivate'], extra: [--container-mount-home]}\n"
    container = load(tmp_path, SMALL + more).container
    assert container is not None
    assert (container.runtime, container.python) == ("pyxis", "python3")
    assert container.mounts == ("/data", "/a:/b", "/a:/b:ro+rprivate")


def test_scalars_are_read_as_written(tmp_path: Path) -> None:
    text = """\
name: 1e3
strategy: multiworker
time: 1:30
nodes: 2
ranks_per_node: 4
collect: no
command: [run, 1:30, 0.10, 1e-3, yes, 010, ~x, "a b"]
env: {A: off, B: 1_000, C: 2024-01-01, D: ''}
"""
    spec = load(tmp_path, text)
    assert spec.time == "1:30"
    assert spec.command == ("run", "1:30", "0.10", "1e-3", "yes", "010", "~x", "a b")
    assert spec.env == {"A": "off", "B": "1_000", "C": "2024-01-01", "D": ""}
    assert (spec.name, spec.world_size, spec.collect) == ("1e3", 8, False)


def test_other_dollars_in_a_variable_are_only_text(tmp_path: Path) -> None:
    values = {"PATH": "$HOME/bin:$PATHS:${PATH_2}", "A": "$", "B": "B$PATH{B}", "C": "$$c ${"}
    text = "".join(f"  {name}: '{value}'\n" for name, value in values.items())
    assert load(tmp_path, f"{SMALL}env:\n{text}").env == values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 60),
        ("0:30", 30),
        ("1:30", 90),
        ("01:30:00", 5400),
        ("1-0", 86400),
        ("1-12:30", 131400),
        ("0-00:00:05", 5),
    ],
)
def test_time_limit_means_what_slurm_means(text: str, seconds: int) -> None:
    assert time_limit_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1h", "0", "0:00", "-1", "1:2:3:4", "1-", "1 ", "1\n", "١", "UNLIMITED"]
)
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="limit"):
        time_limit_s(text)


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    text = """\
name: my job
strategi: horovod
time: 1h
profile:
  profilers: nsys
env: {A-B: x}
command: []
"""
    assert problem(tmp_path, text).splitlines() == [
        "DIR/hpcprof.yaml is not a valid job spec (7 problems):",
        "  strategy: missing; this field has no default",
        "  line 1: name: may hold letters, digits, '.', '_' and '-' (64 at most, no '-' first) "
        "(given: 'my job')",
        "  line 2: strategi: unknown field; did you mean 'strategy'?",
        "  line 3: time: is not a time limit; write 90 (minutes), 01:30:00 or 1-12:00:00 "
        "(given: '1h')",
        "  line 5: profile.profilers: unknown field; did you mean 'profiler'?",
        "  line 6: env.A-B: is not a name that a shell can export (letters, digits, _) "
        "(given: 'A-B')",
        "  line 7: command: must not be empty",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpu: 4", "line 5: gpu: unknown field; known here: schema, name, strategy, site, nodes"),
        ("nodes: 0", "line 5: nodes: input should be greater than 0 (given: '0')"),
        ("nodes:", "line 5: nodes: input should be a valid integer (given: None)"),
        ("mem: 64 GB", "line 5: mem: is not an amount of memory per node"),
        ("sbatch_extra: --x", "line 5: sbatch_extra: must be a list, such as [a, b]"),
        ("profile: nsys", "line 5: profile: must hold fields, indented below it"),
        ("env: {A: }", "line 5: env.A: must be text; write '' for an empty one"),
        ("env: {UID: '0'}", "line 5: env.UID: is set by bash itself"),
        (
            "env: {PATH: '/opt/x/bin:$PATH'}",
            "line 5: env: the value of PATH holds $PATH itself, and no shell fills it in; "
            "write export PATH=...:$PATH into python.activate",
        ),
        ("env: {A: b, PATH: '${PATH}:/x'}", "line 5: env: the value of PATH holds $PATH itself"),
        ("env: {P: '${P:-x}'}", "line 5: env: the value of P holds $P itself"),
        ("env: {HPCPROF_WINDOW: x}", "line 5: env.HPCPROF_WINDOW: is hpcprof's own"),
        (
            "profile: {steps: 20}",
            "line 5: profile.steps: '20' is not a range of steps; write 20-59",
        ),
        ("profile: {steps: 9-3}", "line 5: profile.steps: 9-3: the last step comes before"),
        ("profile: {op_steps: all}", "line 5: profile.op_steps: 'all' is not a range of steps"),
        ("profile: {tf_steps: none}", "line 5: profile.tf_steps: 'none' is not a range of steps"),
        ("profile: {tf_ranks: rank0}", "line 5: profile.tf_ranks: choose ranks by all, 0, 0-3"),
        ("profile: {flush_s: 60}", "line 5: profile.flush_s: is too short: Slurm sends its signal"),
        (
            "profile: {flush_s: 65536}",
            "line 5: profile.flush_s: is more than sbatch --signal takes",
        ),
        (
            "profile: {flush_s: -1}",
            "line 5: profile.flush_s: input should be greater than or equal",
        ),
        ("profile: {hang_after_s: -1}", "line 5: profile.hang_after_s: input should be greater"),
        ("container: {runtime: docker}", "line 5: container.runtime: input should be 'apptainer'"),
        ("container: {runtime: pyxis}", "container.image: missing"),
        ("container: {image: --nv}", "line 5: container.image: is an option, not an image"),
        ("container: {mounts: [data]}", "line 5: container.mounts.0: is not a mount; write /data"),
        ("container: {mounts: ['/a,/b']}", "line 5: container.mounts.0: is not a mount"),
        ('account: "a\\nb"', "line 5: account: must be one line of text"),
        ('env: {A: "a\\0b"}', "line 5: env.A: holds the control character '\\x00'"),
        ("profile: {ranks: first}", "line 5: profile.ranks: choose ranks by all, 0, 0-3"),
        ("schema: 2", "line 5: schema: this version of hpcprof reads schema 1 (given: '2')"),
        ("name: again", "line 5: 'name' is given twice (first in line 1)"),
        ("nodes: *n", "line 5: aliases (*name) are not read here"),
        ("nodes: [1", "line 6: "),
        ("? [a, b]\n: c", "line 5: a field name must be a word"),
        ("nodes: !!python/object/apply:os.getcwd []", "line 5: could not determine a constructor"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    assert message in problem(tmp_path, SMALL + line + "\n")


@pytest.mark.parametrize(
    "command", ["a | tee log", "a > log", "cd x && a", "a $HOME", "a `b`", "a; b"]
)
def test_shell_syntax_in_a_command_is_refused(tmp_path: Path, command: str) -> None:
    text = SMALL.replace("python train.py --epochs 3", command)
    assert "is not run by a shell" in problem(tmp_path, text)


def test_a_list_of_words_is_never_questioned(tmp_path: Path) -> None:
    text = SMALL.replace("python train.py --epochs 3", "[bash, -c, 'a | b > $HOME']")
    assert load(tmp_path, text).command == ("bash", "-c", "a | b > $HOME")


@pytest.mark.parametrize(
    "content", [b"", b"just words", b"- a\n- b\n", b"[" * 5000, b"\xff\xfe\x00", b"a: \x07"]
)
def test_other_files_are_refused_in_one_message(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises((UsageError, InputError), match=r"model\.bin"):
        load_spec(path)


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job spec not found"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_spec(tmp_path)


def test_a_spec_cannot_be_changed() -> None:
    spec = JobSpec(name="a", strategy="horovod", time="1", command=("x",))
    with pytest.raises(ValidationError, match="frozen"):
        spec.nodes = 2  # type: ignore[misc]


@given(st.text(max_size=200))
def test_any_text_is_refused_in_one_message(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"any\.yaml"):
        load_spec(path)


def test_horovods_timeline_is_refused_where_nothing_would_write_it(tmp_path: Path) -> None:
    timeline = "profile: {horovod_timeline: yes}\n"
    assert load(tmp_path, SMALL + timeline).profile.horovod_timeline is True
    text = SMALL.replace("strategy: horovod", "strategy: multiworker")
    assert problem(tmp_path, text + timeline).endswith(
        "line 5: profile: horovod_timeline: yes records nothing with strategy: multiworker, which "
        "does not use Horovod; leave profile.horovod_timeline out"
    )
    assert load(tmp_path, text + timeline.replace("yes", "no")).strategy == "multiworker"


def test_horovods_ticks_are_refused_where_nothing_would_show_them(tmp_path: Path) -> None:
    both = "profile: {horovod_timeline: yes, horovod_ticks: yes}\n"
    assert load(tmp_path, SMALL + both).profile.horovod_ticks is True
    assert problem(tmp_path, SMALL + "profile: {horovod_ticks: yes}\n").endswith(
        "horovod_ticks: yes slows Horovod down for ticks that only its timeline shows; write "
        "horovod_timeline: yes too, or leave profile.horovod_ticks out"
    )


def test_what_the_training_records_by_itself_has_defaults(tmp_path: Path) -> None:
    profile = load(tmp_path, SMALL).profile
    assert (profile.hooks, profile.recorder, profile.op_steps) == (True, "auto", None)
    assert (profile.tf_ranks, profile.tf_steps) == (None, "30-39")
    more = "profile: {hooks: no, recorder: none, op_steps: none, tf_ranks: local0, tf_steps: 7-9}\n"
    profile = load(tmp_path, SMALL + more).profile
    assert (profile.hooks, profile.recorder, profile.op_steps) == (False, "none", "none")
    assert (profile.tf_ranks, profile.tf_steps) == ("local0", "7-9")
