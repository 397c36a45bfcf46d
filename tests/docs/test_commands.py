"""The commands in README and docs are commands of ``reput``, with existing options."""

import functools
import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main

from reput.cli.app import build_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVERS = ("up", "broker", "namesrv", "proxy")
"""Commands that read their options themselves; ``test_server_guides.py`` tests those."""


def documented() -> list[tuple[str, str]]:
    """Return page and command line, for all lines of shell blocks that call ``reput``."""
    commands = []
    for page in PAGES:
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            called = re.search(r"(?:^|[|\s])reput ([a-z].*)$", line.partition("  #")[0])
            if called and not called[1].startswith(SERVERS):
                commands.append((str(page.relative_to(ROOT)), called[1].strip()))
    return commands


@functools.cache
def application() -> click.Command:
    return typer.main.get_command(build_app())


@pytest.mark.parametrize(("page", "line"), documented())
def test_a_documented_command_exists(page: str, line: str) -> None:
    words = shlex.split(line)
    command = application()
    context = click.Context(command, info_name="reput")
    while isinstance(command, click.Group) and words:
        name = words.pop(0)
        subcommand = command.get_command(context, name)
        assert subcommand is not None, f"{page}: no command {name!r} in: reput {line}"
        command = subcommand
    command.make_context(command.name, words, parent=context)


def test_many_commands_are_found() -> None:
    assert len(documented()) > 20
