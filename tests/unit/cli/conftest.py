"""Fixtures of tests of commands that access a cluster: a cluster, and commands against it."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reput.testing.local_broker import LocalBroker
from wire_command import Command


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
