"""The shell completes groups and commands, though only the group in use is built otherwise."""

import subprocess
import sys
from os import environ

import pytest


@pytest.mark.parametrize(
    ("words", "completed"),
    [("reput pip", ["pipeline"]), ("reput topic l", ["list"]), ("reput store sh", ["show"])],
)
def test_bash_gets_the_commands(words: str, completed: list[str]) -> None:
    asked = {"_REPUT_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = subprocess.run(
        [sys.executable, "-m", "reput"],
        capture_output=True,
        text=True,
        check=False,
        env={**environ, **asked, "COMP_CWORD": str(words.count(" "))},
    )
    assert done.stdout.split() == completed, done.stderr
