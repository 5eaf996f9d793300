"""training.json: whole, damaged or missing, and on its way through the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcprof.annotate import training_notes
from hpcprof.artifacts import rank_env
from hpcprof.artifacts.paths import ArtifactPaths
from hpcprof.artifacts.training_record import new_training_record
from hpcprof.readers.training_file import read_training
from hpcprof.trace.frame import empty_spans
from hpcprof.trace.model import Trace, Training
from hpcprof.trace.store import TraceStore
from tests.unit.results_builder import rank_info

pytestmark = pytest.mark.unit

WHOLE = {
    "versions": {"keras": "2.15.0"},
    "hooks": {"keras": "attached", "loop": "failed: no such function"},
    "steps_by": "keras",
    "phases_not_separable": "jit_compile",
    "strategy": "MirroredStrategy",
    "replicas": 2,
    "model": {"name": "net", "layers": [{"name": "a", "type": "Dense"}], "jit_compile": True},
    "optimizer": {"class": "Adam", "scopes": ["adam", "Adam"], "learning_rate": 0.001},
    "variables": [
        {
            **{"name": "a/kernel:0", "shape": [8, 4], "dtype": "float32", "bytes": 128},
            **{"role": "weight", "trainable": True},
        }
    ],
    "batch_size": 32,
    "first_batches": ["aa", "bb", "cc"],
    "horovod": {"size": 2, "rank": 1, "gradients": 4, "backends": ["mpi"], "settings": {}},
    "callbacks": ["ModelCheckpoint"],
    "profile_batch": [2, 5],
    "traces": {"train_function": 2},
    "eager_steps": 3,
    "steps": 60,
    "checksums": [{"step": 1, "variable": "a/kernel:0", "value": "d 1 0 0 0 0"}],
    "memory": {"GPU:0": [[0, 512, 1024], [1, 600, 1024]]},
    "op_steps": "10-29",
    "warnings": ["something"],
}
READ = Training(
    steps=60,
    steps_by="keras",
    versions={"keras": "2.15.0"},
    hooks={"keras": "attached", "loop": "failed: no such function"},
    phases_not_separable="jit_compile",
    strategy="MirroredStrategy",
    replicas=2,
    model_name="net",
    layers=("a",),
    optimizer="Adam",
    optimizer_scopes=("adam", "Adam"),
    variables=(("a/kernel:0", 128, "weight", True),),
    batch_size=32,
    first_batches=("aa", "bb", "cc"),
    horovod={"size": 2, "rank": 1, "gradients": 4, "backends": ["mpi"], "settings": {}},
    callbacks=("ModelCheckpoint",),
    profile_batch="[2, 5]",
    traces={"train_function": 2},
    eager_steps=3,
    checksums=((1, "a/kernel:0", "d 1 0 0 0 0"),),
    memory={"GPU:0": ((0, 512, 1024), (1, 600, 1024))},
    op_steps="10-29",
    warnings=("something",),
)


def written(tmp_path: Path, content: str) -> ArtifactPaths:
    paths = ArtifactPaths(tmp_path)
    paths.rank_folder(3).mkdir(parents=True)
    paths.training(3).write_text(content, encoding="utf-8")
    return paths


def read(tmp_path: Path, **fields: Any) -> tuple[Training | None, tuple[str, ...]]:
    record = {**new_training_record(), **fields}
    return read_training(written(tmp_path, json.dumps(record)), 3)


def test_a_whole_record_is_read_as_it_is(tmp_path: Path) -> None:
    assert read(tmp_path, **WHOLE) == (READ, ())


def test_what_nobody_looked_at_is_not_known_and_no_damage(tmp_path: Path) -> None:
    assert read(tmp_path) == (Training(), ())


def test_what_the_notes_write_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ArtifactPaths(tmp_path)
    paths.rank_folder(3).mkdir(parents=True)
    monkeypatch.setenv(rank_env.RANK_FOLDER, str(paths.rank_folder(3)))
    monkeypatch.setenv(rank_env.RANK, "3")
    monkeypatch.setattr(training_notes, "_record", new_training_record())
    training_notes.put(horovod={"size": 2}, batch_size=16, hooks={"keras": "attached"})
    training_notes.put(horovod={"rank": 1}, hooks={"loop": "attached"})
    training_notes.warn("once")
    training_notes.warn("once")
    training_notes.write()
    assert read_training(paths, 3) == (
        Training(
            horovod={"size": 2, "rank": 1},
            batch_size=16,
            hooks={"keras": "attached", "loop": "attached"},
            warnings=("once",),
        ),
        (),
    )


def test_no_file_is_no_training_and_no_warning(tmp_path: Path) -> None:
    assert read_training(ArtifactPaths(tmp_path), 3) == (None, ())


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"schema": 1, "hooks": {', "cannot be read"),
        ("[]", "is not a JSON object"),
        ('{"schema": 99}', "has schema 99, this hpcprof reads 1"),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_told(tmp_path: Path, content: str, word: str) -> None:
    training, (warning,) = read_training(written(tmp_path, content), 3)
    assert training is None
    assert warning.startswith("what hooks saw of the training is not known: ")
    assert word in warning


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", -1),
        ("steps", True),
        ("steps", "60"),
        ("batch_size", 1.5),
        ("hooks", ["keras"]),
        ("hooks", {"keras": 1}),
        ("horovod", "yes"),
        ("first_batches", "abc"),
        ("variables", [{"name": "a"}]),
        ("variables", [3]),
        ("checksums", [{"step": 1, "variable": "a", "value": 7}]),
        ("traces", {"f": None}),
        ("op_origins", {"backward": "MatMul"}),
        ("memory", {"GPU:0": [[1, 2]]}),
        ("memory", {"GPU:0": [[1, 2, -3]]}),
    ],
)
def test_a_field_that_makes_no_sense_costs_that_field_only(
    tmp_path: Path, field: str, value: Any
) -> None:
    training, warnings = read(tmp_path, **{**WHOLE, field: value})
    missing = getattr(Training(), field)
    assert training == replace(READ, **{field: missing})
    assert warnings == (f"{field} in training.json makes no sense and is ignored",)


@pytest.mark.parametrize("training", [None, Training(), READ])
def test_the_store_gives_back_what_it_was_given(tmp_path: Path, training: Training | None) -> None:
    info = replace(rank_info(3, "node0", 4), training=training)
    store = TraceStore(tmp_path)
    store.write(Trace(info, empty_spans()))
    assert store.rank_info(3) == info
