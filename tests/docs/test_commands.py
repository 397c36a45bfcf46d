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
SERVERS = ("up", "broker", "controller", "namesrv", "proxy")
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


# --- installations ------------------------------------------------------------------------------


def test_no_text_installs_from_a_registry() -> None:
    """No registry has a package of reput: a clone or a wheel is named."""
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "ops").rglob("*.yml"), *PAGES]
    wrong = re.compile(r"pip install [^\n]*['\" ]reput\[")
    assert [str(path) for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []


# --- metacharacters of shells -------------------------------------------------------------------

FENCED = re.compile(r"^ *```(.*)\n((?:.*\n)*?) *```$", re.MULTILINE)
SHELLS = ("", "sh", "bash", "console", "shell")
QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\([^()]*\)", re.DOTALL)
IN_A_WORD = re.compile(r"(?<=\S)(?:(?<![;&|<>])[;&|]|(?<![\d;&|<>])[<>])(?=[^\s;&|<>])|<\w+>")
"""A metacharacter with letters on both sides: it was meant as a part of an argument."""


def shell_lines(text: str) -> list[str]:
    """Return the commands of the shell blocks of a page, and those in its text."""
    lines = []
    for kind, block in FENCED.findall(text):
        if kind in SHELLS:
            all_lines = block.replace("\\\n", " ").splitlines()
            prompted = [line[2:] for line in all_lines if line.startswith("$ ")]
            lines += prompted or all_lines  # the others are output
    rest = FENCED.sub("", text)
    return lines + re.findall(r"`(?:\$ )?((?:reput|pip|curl|make|docker) [^`\n]+)`", rest)


def unquoted(line: str) -> list[str]:
    """Return the words in which a shell ends the command, or redirects it."""
    bare = QUOTED.sub("Q", line)
    bare = re.sub(r"(^|\s)#.*", "", bare)
    return [
        bare[max(0, match.start() - 20) : match.end() + 20] for match in IN_A_WORD.finditer(bare)
    ]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("reput broker -n a:9876;b:9876", 1),
        ("reput broker -n 'a:9876;b:9876'", 0),
        ("reput group show G > out.txt 2>&1 && ls; ls | wc &", 0),
        ("curl http://h/queues?topic=a&group=b", 1),
        ("reput message get <id>", 1),
        ('pip install "$(ls *.whl)[server]"  # a;b', 0),
    ],
)
def test_a_metacharacter_in_an_argument_is_found(line: str, count: int) -> None:
    assert len(unquoted(line)) == count


@pytest.mark.parametrize(
    "page",
    # The blocks of the reference are no commands, but their usage.
    [*(page for page in PAGES if page.name != "cli.md"), *(ROOT / "examples").rglob("*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_arguments_of_commands_are_quoted(page: Path) -> None:
    assert [words for line in shell_lines(page.read_text()) for words in unquoted(line)] == []
