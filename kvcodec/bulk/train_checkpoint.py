"""Dictionaries that are done, kept beside the output until all are: what an interrupted training goes on from.

`model.kvdict.partial` is a directory: `job.json` says what is trained, from which dumps, and how; `N.kvdict` is the
N-th dictionary. Each file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.errors import FormatError, SpecError

SUFFIX = ".partial"
_JOB = "job.json"


class Checkpoint:
    """The directory of one job.

    Raises SpecError if there is one and neither `resume` nor `overwrite` is asked for, and with the first thing that
    differs if `resume` is, and it is of another job.
    """

    def __init__(self, out: Path, job: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        self.path = out.with_name(out.name + SUFFIX)
        self._said, self._lock = json.dumps(job, sort_keys=True), threading.Lock()
        if not (self.path / _JOB).exists():
            return
        if resume:
            self._check()
        elif not overwrite:
            what = "an interrupted training left it; resume (--resume) goes on, overwrite (--force) begins anew"
            raise SpecError(f"{self.path}: {what}")
        else:
            shutil.rmtree(self.path)

    def _check(self) -> None:
        try:
            was = json.loads((self.path / _JOB).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(f"{self.path}: cannot be gone on with: {error}") from None
        if not isinstance(was, dict):
            raise SpecError(f"{self.path}: cannot be gone on with: {_JOB} is no object")
        now = json.loads(self._said)
        for key in sorted(now.keys() | was.keys()):
            if was.get(key) != now.get(key):
                raise SpecError(f"{self.path} was begun with {key} {was.get(key)}, not {now.get(key)}")

    def read(self, number: int) -> tuple[Dictionary, dict[str, Any]] | None:
        """The dictionary of that number and what was said of it, None if it is not done, or its file is damaged."""
        try:
            found = read_artefact(self.path / f"{number}.kvdict")
        except (FileNotFoundError, FormatError):
            return None
        return found.dictionaries.dictionaries[0], dict(found.information)

    def write(self, number: int, dictionary: Dictionary, about: Mapping[str, Any]) -> None:
        """Keep a dictionary that is done. The first one makes the directory."""
        with self._lock:
            if not (self.path / _JOB).exists():
                self._make()
        write_artefact(
            self.path / f"{number}.kvdict", Artefact(DictionarySet((dictionary,)), about), overwrite=True
        )  # fmt: skip

    def _make(self) -> None:
        """The directory, and in it the job before any dictionary."""
        self.path.mkdir(exist_ok=True)
        new = self.path / f".{_JOB}"
        new.write_text(self._said)
        os.replace(new, self.path / _JOB)

    def remove(self) -> None:
        """All is in the output."""
        shutil.rmtree(self.path, ignore_errors=True)
