from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

import broker_subject
from broker_subject import Subject


@pytest_asyncio.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    """A broker with a topic ``T`` of four queues."""
    async with broker_subject.running(tmp_path) as one:
        await one.send("T", b"first", queue_id=3)
        yield one
