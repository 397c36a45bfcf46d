"""Run commands of ``reput`` against a cluster, in the test's process."""

import json
from typing import Any

import pytest

from reput.cli import main as cli


class Command:
    """Runs commands against a cluster, in this process."""

    def __init__(self, namesrv: str, capture: pytest.CaptureFixture[str]) -> None:
        self._namesrv = namesrv
        self._capture = capture

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Return the output of a command."""
        self._capture.readouterr()
        exit_code = cli.run([*map(str, arguments), "-n", self._namesrv])
        out, self.notes = self._capture.readouterr()
        assert exit_code == code, self.notes
        return out

    def json(self, *arguments: object, code: int = 0) -> Any:
        """Return the JSON document that a command prints."""
        return json.loads(self(*arguments, "--json", code=code))

    def json_lines(self, *arguments: object) -> list[Any]:
        """Return the JSON documents that a command prints, one a line."""
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]

    def complaint(self, *arguments: object) -> str:
        """Return the line on stderr of a command that fails."""
        out = self(*arguments, code=2)
        assert out == ""
        assert self.notes.startswith("reput: ")
        assert self.notes.count("\n") == 1, self.notes
        return self.notes.removeprefix("reput: ").rstrip("\n")
