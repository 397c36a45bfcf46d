"""The Python of the README runs unchanged; Spark's is in tests/spark."""

import ast
import asyncio
import re
import textwrap
from pathlib import Path

import pytest

from reput.testing import LocalBroker

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PRINTED = re.compile(r"^\d+ b'two coffees'$", re.MULTILINE)


def blocks(heading: str) -> list[str]:
    text = re.search(rf"^## {heading}\n(.*?)(?=^## )", README, re.MULTILINE | re.DOTALL)
    assert text
    return re.findall(r"^```python\n(.*?)^```", text[1], re.MULTILINE | re.DOTALL)


def with_await(source: str, namesrv: str) -> str:
    """Put a block into a coroutine; at the line ``...`` the awaited events happen."""
    source = source.replace("127.0.0.1:9876", namesrv).replace(
        "\n    ...\n", "\n    await seen()\n"
    )
    return "async def example(seen):\n" + textwrap.indent(source, "    ")


def test_send_and_consume(capsys: pytest.CaptureFixture[str]) -> None:
    send, consume = blocks("Send and consume from Python")
    with LocalBroker() as mq:
        run(send, mq.namesrv_addr)
        status, _, message_id = capsys.readouterr().out.strip().partition(" ")
        assert (status, len(message_id)) == ("SEND_OK", 32)

        printed = ""

        async def seen() -> None:
            nonlocal printed
            async with asyncio.timeout(60):
                while not PRINTED.search(printed):
                    await asyncio.sleep(0.01)
                    printed += capsys.readouterr().out

        # A new group begins at the start of a young queue.
        run(consume, mq.namesrv_addr, seen)
        assert len(PRINTED.findall(printed)) == 1


def run(source: str, namesrv: str, seen: object = None) -> None:
    names: dict[str, object] = {}
    text = with_await(source, namesrv)
    ast.parse(text)
    exec(compile(text, "README.md", "exec"), names)
    asyncio.run(names["example"](seen))  # type: ignore[operator]


def test_a_broker_for_tests(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("Test against a broker")
    exec(compile(block, "README.md", "exec"), {})
    host, _, port = capsys.readouterr().out.split()[0].partition(":")
    assert host == "127.0.0.1"
    assert port.isdecimal()


def test_keep_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("Keep a store from Python")
    exec(compile(block, "README.md", "exec"), {})
