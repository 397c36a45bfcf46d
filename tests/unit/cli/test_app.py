"""How ``reput`` starts: only what a command line needs is imported."""

import subprocess
import sys
from typing import Any

import pytest
import typer.main

from reput.cli.app import build_app


def modules_after(*arguments: str) -> set[str]:
    """Modules that a new interpreter has imported when a command line has run."""
    code = "import sys, reput.cli.main as cli; cli.run(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_needs_no_typer() -> None:
    loaded = modules_after("--version")
    assert "typer" not in loaded
    assert "reput.cli.app" not in loaded


def test_help_imports_no_group() -> None:
    loaded = modules_after("--help")
    assert "typer" in loaded
    assert loaded.isdisjoint({"reput.cli.topics", "reput.cli.store", "reput.cli.pipeline"})


def test_a_command_imports_its_group_and_no_client() -> None:
    loaded = modules_after("topic", "list", "--help")
    assert "reput.cli.topics" in loaded
    assert loaded.isdisjoint({"reput.cli.store", "reput.cli.pipeline", "reput.client", "asyncio"})


@pytest.mark.parametrize("name", ["topic", "cluster", "store"])
def test_a_group_that_is_built_alone_has_all_of_its_commands(name: str) -> None:
    def commands(only: str | None) -> Any:
        group: Any = typer.main.get_command(build_app(only))
        return group.commands[name].commands

    assert list(commands(name)) == list(commands(None)) != []
    assert list(commands("other")) == []


def test_a_word_that_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from reput.cli import main

    assert main.run(["tpoic"]) == 2
    assert "No such command 'tpoic'" in capsys.readouterr().err
