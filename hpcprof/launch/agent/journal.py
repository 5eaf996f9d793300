"""All that one agent writes: its three files of records, and what went wrong, in words."""

from __future__ import annotations

import os
from typing import Any, Mapping

from hpcprof.artifacts import node_records
from hpcprof.artifacts.paths import RUN_FOLDER_MODE, ArtifactPaths
from hpcprof.launch import processes
from hpcprof.launch.agent.record_file import RecordFile

_MOST_NOTES = 100


class Journal:
    """Files of ``node`` in the run folder. Failures are noted and never raised.

    Notes are held back until ``begin``, because the agent's own record comes first in its file.
    """

    def __init__(self, paths: ArtifactPaths, node: str) -> None:
        self._node = node
        self._notes: list[str] = []
        self._begun = False
        try:
            os.makedirs(paths.node_folder(node), mode=RUN_FOLDER_MODE, exist_ok=True)
        except OSError as error:
            self.note(f"{paths.node_folder(node)} cannot be made: {error.strerror}")
        self.clock = RecordFile(paths.node_clock(node), self.note)
        self.links = RecordFile(paths.node_links(node), self.note)
        self.samples = RecordFile(paths.node_samples(node), self.note)

    @property
    def is_writable(self) -> bool:
        """Whether any of the files takes records."""
        return any(file.is_open for file in (self.clock, self.links, self.samples))

    def begin(self, agent: Mapping[str, Any]) -> None:
        """Write the agent's own record and, the first time, the notes that were made before."""
        self.clock.append({"kind": node_records.AGENT, **agent})
        if self._begun:
            return
        self._begun = True
        for text in list(self._notes):
            self._write_note(text)

    def note(self, text: str) -> None:
        """Record and print something that went wrong; once, however often it is said."""
        if text in self._notes or len(self._notes) >= _MOST_NOTES:
            return
        self._notes.append(text)
        say(f"{self._node}: {text}")
        if self._begun:
            self._write_note(text)

    def _write_note(self, text: str) -> None:
        self.clock.append({"kind": node_records.NOTE, "text": text})


def say(text: str) -> None:
    """One line on stderr; a closed stderr is no reason to fail."""
    processes.say(text, who="agent")
