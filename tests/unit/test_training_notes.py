"""The notes about a training: merged, written whole, and never in the training's way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit import annotated

pytestmark = pytest.mark.unit

NOTES = "from hpcprof.annotate import training_notes as notes\n"


def written(folder: Path) -> Any:
    return json.loads((folder / "training.json").read_text())


def run(code: str, folder: Path | None, state: Path | None = None) -> str:
    done = annotated.run(NOTES + code, folder, state)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_notes_are_merged_and_written_into_the_folder_of_the_rank(tmp_path: Path) -> None:
    code = """
notes.put(batch_size=8, traces={"f": 1})
notes.put(batch_size=16, traces={"g": 2})
notes.write()
"""
    run(code, tmp_path)
    record = written(tmp_path)
    assert (record["batch_size"], record["traces"]) == (16, {"f": 1, "g": 2})
    assert (record["schema"], record["steps"]) == (1, 0)


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    code = """
path = os.path.join(os.environ["HPCPROF_RANK_FOLDER"], "training.json")
notes.put(steps=1)
notes.write()
os.unlink(path)
notes.write()
print(os.path.exists(path))
notes.warn("more")
notes.write()
print(os.path.exists(path))
"""
    assert run(code, tmp_path) == "False\nTrue\n"
    assert written(tmp_path)["warnings"] == ["more"]


@pytest.mark.parametrize(
    ("value", "word"), [("object()", "not JSON serializable"), ("{1: {2}}", "set")]
)
def test_what_json_cannot_hold_is_told_and_goes_no_further(
    tmp_path: Path, value: str, word: str
) -> None:
    folder, state = tmp_path / "rank", tmp_path / "state"
    folder.mkdir()
    run(f"notes.put(strategy={value})\nnotes.write()\nnotes.write()", folder, state)
    (note,) = annotated.notes(state)
    assert note.startswith("what hooks saw of the training was not written down: ")
    assert word in note
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    run("notes.write()", tmp_path / "gone", tmp_path / "state")
    assert "No such file" in annotated.notes(tmp_path / "state")[0]


def test_outside_of_the_launcher_nothing_is_written(tmp_path: Path) -> None:
    run(f"os.chdir({str(tmp_path)!r})\nnotes.put(steps=3)\nnotes.write()", None)
    assert list(tmp_path.iterdir()) == []
