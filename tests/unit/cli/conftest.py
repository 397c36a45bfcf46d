"""Fixtures of tests of commands that access a cluster: a cluster, and commands against it."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reput.testing.local_broker import LocalBroker
from wire_command import Command


@pytest.fixture(autouse=True)
def _handlers_of_logs() -> Iterator[None]:
    """Restore the handlers after a command, whose own writes to the captured stderr of a test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def command(rocketmq: LocalBroker, capsys: pytest.CaptureFixture[str]) -> Command:
    """Commands against a name server and a broker without topics."""
    return Command(rocketmq.namesrv_addr, capsys)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """``stdin(data)``: set the input of the next command, which is a pipe."""
    pipes: list[Any] = []

    def put(data: bytes) -> None:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        pipes.append(os.fdopen(reading, "rb"))
        monkeypatch.setattr("sys.stdin", pipes[-1])

    yield put
    for pipe in pipes:
        pipe.close()
