"""Run golden scripts: text files that hold commands together with their output.

A script is a list of blocks, separated by blank lines:

    # A comment.
    put TopicA 0 body=hello key=k1
    advance 3s
    ---
    ok physical_offset=0 queue_offset=0

The lines above ``---`` are commands; the lines below it are everything that they printed. A block
whose commands print nothing expects ``ok``. Output that has a blank line is written with ``> ``
before each line. An argument is a word, ``name=value`` or either in quotes.

The commands of ``store/**/*.script`` are the public methods of the class ``Commands`` in
``store/commands.py`` (or in the nearest ``commands.py`` above the script); ``-`` in the name of a
command is ``_`` in the name of its method. The annotations of its parameters convert the arguments
(``CONVERTERS``). A method returns lines, one string, or None; it may be a coroutine function. An
exception of ``Commands.ERRORS`` prints ``error: Type: message``; any other exception fails the
script.

    class Commands:
        ERRORS = (ReputError,)
        SUBJECTS = ("sync", "async")     # optional: each script runs once with each

        def __init__(self, folder: Path, subject: str) -> None: ...
        def put(self, topic: str, queue_id: int, body: bytes = b"", **fields: str) -> str: ...
        def advance(self, duration: Milliseconds) -> None: ...
        def close(self) -> None: ...     # at the end of the script, also of one that failed

An attribute ``replaced`` (pattern -> replacement, as of ``re.sub``) takes out of the output what
differs between runs, such as paths.
"""

import asyncio
import difflib
import importlib
import inspect
import re
import shlex
import types
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NewType, Union, get_args, get_origin

SCRIPTS = Path(__file__).parent

Milliseconds = NewType("Milliseconds", int)

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(-?\d+)(ms|s|m|h|d)")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class ScriptError(Exception):
    """A script, or one of its commands, cannot be parsed."""


@dataclass(frozen=True)
class Block:
    """Commands and their expected output."""

    source: list[str]
    """Lines of the commands, with comments."""
    line_number: int
    """Line of the first of them, from 1."""
    output: str


def milliseconds(text: str) -> Milliseconds:
    """Return a duration such as ``3s``, ``500ms`` or ``2d`` in milliseconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ScriptError(f"{text!r} is no duration: use one of {', '.join(_UNITS_MS)}")
    return Milliseconds(int(match[1]) * _UNITS_MS[match[2]])


def data(text: str) -> bytes:
    """Return bytes: ``hello``, hexadecimal ``0x00ff``, or either repeated, ``ab*100``."""
    match = re.fullmatch(r"(.*)\*(\d+)", text, re.DOTALL)
    unit, count = (match[1], int(match[2])) if match else (text, 1)
    return (bytes.fromhex(unit[2:]) if unit.startswith("0x") else unit.encode()) * count


def boolean(text: str) -> bool:
    """Return True for ``yes`` and False for ``no``."""
    if text not in ("yes", "no"):
        raise ScriptError(f"{text!r} is neither yes nor no")
    return text == "yes"


CONVERTERS: dict[Any, Callable[[str], Any]] = {
    int: lambda text: int(text, 0),
    bool: boolean,
    bytes: data,
    str: str,
    Milliseconds: milliseconds,
    inspect.Parameter.empty: str,
}


def parse(text: str) -> list[Block]:
    """Return the blocks of a script."""
    lines = text.splitlines()
    blocks = []
    number = 0
    while number < len(lines):
        if not lines[number].strip():
            number += 1
            continue
        start = number
        while number < len(lines) and lines[number] != "---":
            number += 1
        if number == len(lines):
            raise ScriptError(f"line {start + 1}: no --- after the commands that begin here")
        source = lines[start:number]
        number += 1
        first = number
        while number < len(lines) and lines[number].strip():
            number += 1
        blocks.append(Block(source, start + 1, _unquoted(lines[first:number])))
    return blocks


def render(blocks: Iterable[Block]) -> str:
    """Return the text of a script."""
    parts = [
        "\n".join([*block.source, "---", *_quoted(block.output.splitlines())]) for block in blocks
    ]
    return "\n\n".join(parts) + "\n"


def _unquoted(lines: list[str]) -> str:
    if lines and all(line == ">" or line.startswith("> ") for line in lines):
        lines = [line[2:] for line in lines]
    return "\n".join(lines)


def _quoted(lines: list[str]) -> list[str]:
    needs_quotes = any(not line.strip() or line.startswith(">") for line in lines)
    return [f"> {line}".rstrip() for line in lines] if needs_quotes else lines


class Run:
    """One run of one script.

    Args:
        commands: The object whose public methods are the commands.
        path: The script, for error messages.
    """

    def __init__(self, commands: Any, path: Path) -> None:
        self._commands = commands
        self._path = path
        self._runner = asyncio.Runner()

    def run(self, blocks: Iterable[Block]) -> list[Block]:
        """Return the blocks with the output that their commands printed."""
        return [Block(block.source, block.line_number, self._output(block)) for block in blocks]

    def close(self) -> None:
        """Call ``close`` of the commands, if they have it, and end the event loop."""
        try:
            if hasattr(self._commands, "close"):
                self._result(self._commands.close())
        finally:
            self._runner.close()

    def _output(self, block: Block) -> str:
        lines: list[str] = []
        for number, line in enumerate(block.source, block.line_number):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                lines += self._execute(line)
            except BaseException as error:
                error.add_note(f"{self._path}:{number}: {line}")
                raise
        return "\n".join(self._replaced(line).rstrip() for line in lines) or "ok"

    def _replaced(self, line: str) -> str:
        for pattern, replacement in getattr(self._commands, "replaced", {}).items():
            line = re.sub(pattern, replacement, line)
        return line

    def _execute(self, line: str) -> list[str]:
        name, *words = shlex.split(line)
        method = getattr(self._commands, name.replace("-", "_"), None)
        if name.startswith("_") or name == "close" or not callable(method):
            raise ScriptError(f"there is no command {name}")
        positional, named = _bound(method, words)
        lines: list[str] = []
        try:
            result = self._result(method(*positional, **named))
            # The lines that a generator yields before an error are printed too.
            lines.extend(result.splitlines() if isinstance(result, str) else result or ())
        except getattr(self._commands, "ERRORS", ()) as error:
            lines.append(f"error: {type(error).__name__}: {error}")
        return lines

    def _result(self, value: Any) -> Any:
        return self._runner.run(value) if isinstance(value, Coroutine) else value


def _bound(method: Callable[..., Any], words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call: words and named values, converted by annotation."""
    parameters = inspect.signature(method, eval_str=True).parameters
    by_kind: dict[Any, list[inspect.Parameter]] = {}
    for parameter in parameters.values():
        by_kind.setdefault(parameter.kind, []).append(parameter)
    places = by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
    rest = by_kind.get(inspect.Parameter.VAR_POSITIONAL, [None])[0]
    others = by_kind.get(inspect.Parameter.VAR_KEYWORD, [None])[0]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for word in words:
        match = _NAMED.fullmatch(word)
        if match and (match[1] in parameters or others):
            named[match[1]] = _converted(parameters.get(match[1], others), match[2])
            continue
        parameter = places[len(positional)] if len(positional) < len(places) else rest
        if parameter is None:
            raise ScriptError(f"too many arguments, or an unknown one: {word}")
        positional.append(_converted(parameter, word))
    try:
        inspect.signature(method).bind(*positional, **named)
    except TypeError as error:
        raise ScriptError(str(error)) from error
    return positional, named


def _converted(parameter: Any, text: str) -> Any:
    annotation = parameter.annotation
    if get_origin(annotation) in (types.UnionType, Union):  # int | None
        annotation = get_args(annotation)[0]
    return CONVERTERS.get(annotation, annotation)(text)


def commands_class(path: Path) -> Any:
    """Return the class ``Commands`` of a script: from the nearest ``commands.py`` above it."""
    folder = next(parent for parent in path.parents if (parent / "commands.py").exists())
    name = ".".join(["scripts", *folder.relative_to(SCRIPTS).parts, "commands"])
    return importlib.import_module(name).Commands


def difference(path: Path, expected: str, actual: str) -> str:
    """Return the difference of the output to the script, as a unified diff; empty if equal."""
    lines = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), str(path), "actual output", lineterm="", n=4
    )
    return "\n".join(lines)
