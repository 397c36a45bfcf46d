"""The runner of golden scripts: parsing, calls, and the report of differences."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import runner
from scripts.runner import Milliseconds, ScriptError


class Commands:
    ERRORS = (ValueError,)
    replaced = {r"/tmp/\w+": "FOLDER"}

    def __init__(self) -> None:
        self.is_closed = False

    def echo(self, *words: str) -> list[str]:
        return list(words)

    def add(self, left: int, right: int = 1) -> str:
        return str(left + right)

    def show(self, body: bytes, is_long: bool = False, **fields: str) -> str:
        return f"{body!r} {is_long} {fields}"

    def wait_for(self, duration: Milliseconds | None = None) -> str:
        return f"{duration} ms"

    async def later(self) -> str:
        return "now"

    def refuse(self) -> None:
        raise ValueError("no")

    def refuse_late(self) -> Iterator[str]:
        yield "one"
        raise ValueError("no")

    def crash(self) -> None:
        raise RuntimeError("a bug")

    def silent(self) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True


def output(text: str) -> str:
    commands = Commands()
    with contextlib.closing(runner.Run(commands, Path("x.script"))) as run:
        result = "\n".join(block.output for block in run.run(runner.parse(text)))
    assert commands.is_closed
    return result


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("echo a 'b c' x=y", "a\nb c\nx=y"),
        ("echo /tmp/abc/file", "FOLDER/file"),
        ("add 2", "3"),
        ("add 2 right=0x10", "18"),
        ("add left=2", "3"),
        ("show 0x00ff*2", r"b'\x00\xff\x00\xff' False {}"),
        ("show ab*3 is_long=yes k=v=w", "b'ababab' True {'k': 'v=w'}"),
        ("wait-for 2m", "120000 ms"),
        ("wait-for", "None ms"),
        ("later", "now"),
        ("refuse", "error: ValueError: no"),
        ("refuse-late", "one\nerror: ValueError: no"),
        ("silent", "ok"),
        ("# only a comment", "ok"),
    ],
)
def test_a_command_prints_its_result(command: str, printed: str) -> None:
    assert output(f"{command}\n---\n") == printed


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("unknown", "no command unknown"),
        ("close", "no command close"),
        ("_hidden", "no command _hidden"),
        ("add", "missing a required argument"),
        ("add 1 2 3", "too many arguments"),
        ("wait-for 3", "no duration"),
        ("show a is_long=1", "neither yes nor no"),
    ],
)
def test_a_command_that_cannot_be_read_fails_the_script(command: str, error: str) -> None:
    with pytest.raises(ScriptError, match=error) as caught:
        output(f"silent\n---\nok\n\n{command}\n---\n")
    assert caught.value.__notes__ == [f"x.script:5: {command}"]


def test_an_unexpected_exception_fails_the_script() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        output("crash\n---\n")


def test_a_block_without_output_is_refused() -> None:
    with pytest.raises(ScriptError, match="line 3: no ---"):
        runner.parse("\n\nadd 1\n\nadd 2\n")


def test_a_script_that_is_right_stays_as_it_is() -> None:
    text = "# two\necho a\necho b\n---\na\nb\n\necho a '' '> b'\n---\n> a\n>\n> > b\n"
    blocks = runner.parse(text)
    with contextlib.closing(runner.Run(Commands(), Path("x.script"))) as run:
        assert runner.render(run.run(blocks)) == text


def test_a_difference_is_shown_as_a_diff() -> None:
    expected, actual = "add 1\n---\n3\n", "add 1\n---\n2\n"
    shown = runner.difference(Path("x.script"), expected, actual).splitlines()
    assert "-3" in shown
    assert "+2" in shown
    assert runner.difference(Path("x.script"), expected, expected) == ""
