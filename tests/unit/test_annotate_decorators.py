"""Marks as decorators, and the Keras callback, in a process that holds no Keras."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.artifacts import span_format
from tests.unit import annotated

pytestmark = pytest.mark.unit

DECORATED = """
@annotate.span("augment")
def augment(depth):
    "Changes an image."
    return augment(depth - 1) + 1 if depth else 0

@annotate.phase("input")
def load():
    return augment(2)

@annotate.step()
def train():
    with annotate.phase("forward"):
        return load()

print(train(), train(), augment.__name__, augment.__doc__, annotate.is_active())
"""


def test_a_decorator_marks_every_call(tmp_path: Path) -> None:
    done = annotated.run(DECORATED, tmp_path)
    assert done.stdout == "2 2 augment Changes an image. True\n", done.stderr
    records = annotated.records(tmp_path)
    assert [each.step for each in records if each.name == "augment"] == [0, 0, 0, 1, 1, 1]
    phases = [each for each in records if each.kind == span_format.KIND_PHASE]
    assert [(each.name, each.step) for each in phases] == [
        *(("input", 0), ("forward", 0), ("input", 1), ("forward", 1)),
    ]
    assert sorted(annotated.steps(tmp_path)) == [0, 1]


def test_decorators_change_nothing_without_the_launcher(tmp_path: Path) -> None:
    done = annotated.run(DECORATED, None)
    assert done.stdout == "2 2 augment Changes an image. False\n", done.stderr


CALLBACK = """
callback = annotate.keras.Profile()
callback.set_model(None)
callback.set_params({})
callback.on_train_begin()
for batch, end in ((0, 3), (4, 7)):
    callback.on_train_batch_begin(batch)
    callback.on_train_batch_end(end)
callback.on_test_begin()
callback.on_test_end()
callback.on_train_batch_begin(0)  # and an exception in the batch
callback.on_train_batch_begin(0)
callback.on_train_batch_end(0, {"loss": 1.0})
callback.on_epoch_end(0)
print(hasattr(callback, "model"), callback.on_test_batch_end._is_default)
"""


def test_the_callback_numbers_steps_by_their_first_batch(tmp_path: Path) -> None:
    done = annotated.run(CALLBACK, tmp_path)
    assert done.stdout == "False True\n", done.stderr
    assert sorted(annotated.steps(tmp_path)) == [0, 4, 8]
    evaluations = [each for each in annotated.records(tmp_path) if each.name == "eval"]
    assert [(each.kind, each.step) for each in evaluations] == [(span_format.KIND_PHASE, 8)]


def test_the_callback_does_nothing_without_the_launcher(tmp_path: Path) -> None:
    done = annotated.run(CALLBACK, None)
    assert (done.returncode, done.stdout) == (0, "False True\n"), done.stderr
