"""Startup of ``reput``: a command line imports only the modules that it needs."""

import subprocess
import sys
from typing import Any

import pytest
import typer.main

from reput.cli.app import build_app

HEAVY = {"msgspec", "numpy", "pyspark", "rich", "asyncio", "reput.client"}
"""Not pydantic: typer imports it if it is installed, and an example needs it."""


def modules_after(*arguments: str) -> set[str]:
    """Return the modules that a new interpreter has imported after a command line ran."""
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
    assert loaded.isdisjoint(HEAVY | {"reput.cli.topics", "reput.cli.store", "reput.cli.pipeline"})


@pytest.mark.parametrize(
    "arguments",
    [["topic", "--help"], ["topic"], ["topic", "list", "--help"], ["topic", "order", "--help"]],
    ids=" ".join,
)
def test_help_of_a_group_imports_that_group_and_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert "reput.cli.topics" in loaded
    assert loaded.isdisjoint(HEAVY | {"reput.cli.store", "reput.cli.pipeline"})


def test_help_of_a_nested_group_imports_nothing_heavy() -> None:
    assert modules_after("cluster", "config", "get", "--help").isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["topic", "cluster", "store"])
def test_a_group_that_is_built_alone_has_all_of_its_commands(name: str) -> None:
    def commands(only: str | None) -> Any:
        group: Any = typer.main.get_command(build_app(only))
        return group.commands[name].commands

    assert list(commands(name)) == list(commands(None)) != []
    assert list(commands("other")) == []


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from reput.cli import main

    assert main.run(["tpoic"]) == 2
    assert "No such command 'tpoic'" in capsys.readouterr().err
