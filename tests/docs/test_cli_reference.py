"""The reference page of the commands has every command with its options, and no others."""

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from reput.cli.app import build_app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
TLS = ("--tls", "--tls-ca", "--tls-cert", "--tls-key")
COMMON = ("--namesrv", *TLS, "--timeout", "--json", "--utc", "--yes")
"""Options that the page explains once, at the top."""
WITH_NAMESRV = ("--access-key", "--secret-key-file")
"""Further ones, which each command with ``--namesrv`` has: they are not listed with it."""


def commands(command: Any = None, *path: str) -> Iterator[tuple[str, Any]]:
    """Return each executable command, by its words."""
    command = command or typer.main.get_command(build_app())
    children = getattr(command, "commands", {})
    for name, child in children.items():
        yield from commands(child, *path, name)
    if not children or (path and command.params):  # `reput console` has commands below it
        yield " ".join(("reput", *path)), command


def sections() -> dict[str, str]:
    """Return the text below each command's heading."""
    parts = re.split(r"^### `(reput [^`]+)`\n", PAGE, flags=re.MULTILINE)[1:]
    texts = (re.split(r"^## ", text, flags=re.MULTILINE)[0] for text in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def options_of(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option"]


def is_shared(option: Any) -> bool:
    return bool({*option.opts} & {*COMMON, *WITH_NAMESRV})


def names_of(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names} `{option.metavar}`" if option.metavar else names


def metavar_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def default_of(option: Any) -> str:
    if option.required:
        return "required"
    default = option.default
    if default is None or default is False or default == [] or default == ():
        return ""
    return f"`{getattr(default, 'value', default)}`"


def row(option: Any) -> str:
    text = option.help.replace("|", r"\|")
    if isinstance(option.default, enum.StrEnum):
        text += f" One of {', '.join(f'`{choice}`' for choice in type(option.default))}."
    return f"| {names_of(option)} | {default_of(option)} | {text} |"


ALL = dict(commands())


def test_every_command_is_documented_and_no_other() -> None:
    assert list(sections()) == list(ALL)


@pytest.mark.parametrize("name", ALL)
def test_the_documented_options_equal_those_of_the_command(name: str) -> None:
    text = sections()[name]
    documented = [line for line in text.splitlines() if line.startswith("| `-")]
    expected = [option for option in options_of(ALL[name]) if not is_shared(option)]
    assert documented == [row(option) for option in expected]
    line = re.search(r"^Common options: (.*)$", text, re.MULTILINE)
    common = re.findall(r"`(--\w+)`", line[1]) if line else []
    given = [
        option.opts[0]
        for option in options_of(ALL[name])
        if is_shared(option) and not option.opts[0].startswith("--tls-")  # they follow --tls
    ]
    assert common == [option for option in given if option not in WITH_NAMESRV]
    others = ("reput pipeline compare", "reput export")
    has_servers = {"--namesrv", "--timeout"} <= {*given} or name in others
    assert [option for option in given if option in WITH_NAMESRV] == [*WITH_NAMESRV] * has_servers


@pytest.mark.parametrize("name", ALL)
def test_the_usage_line_has_the_arguments(name: str) -> None:
    arguments = [param for param in ALL[name].params if param.param_type_name == "argument"]
    usage = " ".join([name, *(metavar_of(argument) for argument in arguments)])
    assert f"```\n{usage}\n```" in sections()[name]


@pytest.mark.parametrize("name", ALL)
def test_the_documented_help_equals_that_of_the_command(name: str) -> None:
    assert inspect.cleandoc(ALL[name].help) in sections()[name]


@pytest.mark.parametrize("option", [*COMMON, *WITH_NAMESRV])
def test_common_options_are_explained(option: str) -> None:
    top = PAGE.partition("### `reput ")[0]
    assert f"`{option}" in top
