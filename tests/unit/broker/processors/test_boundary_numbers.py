"""Every number of every request at its bounds and beyond: the broker replies without a failure.

Java rejects numbers outside its ``int`` and ``long``. The broker used to accept numbers up to
10^4299: it saved them where it could not read them, or failed with struct.error.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import world
from hostile import requests
from hostile.wire import Draft
from reput.broker.processors.table import PROCESSORS
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY

INT, LONG = 1 << 31, 1 << 63
BOUNDARIES = (-LONG, -INT - 1, -INT, -2, -1, INT - 1, INT, LONG - 1, LONG, 10**30, 10**4_299)


def is_number(value: Any) -> bool:
    text = str(value)
    return not isinstance(value, bool) and text.removeprefix("-").isdigit()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of numbers in a document."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))
    elif is_number(value):
        yield path


def variants(draft: Draft) -> Iterator[Draft]:
    """Yield a request with each of its numbers at each boundary."""
    for name, value in (draft.fields or {}).items():
        for number in BOUNDARIES if is_number(value) else ():
            changed = draft.copy()
            assert changed.fields is not None
            changed.fields[name] = str(number)
            yield changed
    for path in places(draft.document) if draft.document is not None else ():
        for number in BOUNDARIES:
            changed = draft.copy()
            place = changed.document
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = number
            yield changed


def all_variants() -> dict[int, list[Draft]]:
    """Return the requests that have a processor, with all their variants, by code."""
    variants_of = {
        code: [variant for draft in drafts for variant in (draft, *variants(draft))]
        for code, drafts in requests.BROKER.items()
    }
    assert variants_of.keys() == PROCESSORS.keys()
    return {code: drafts for code, drafts in variants_of.items() if drafts}


def saved_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for item in value.values():
            yield from saved_numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from saved_numbers(item)
    elif isinstance(value, int):
        yield value


@pytest.mark.filterwarnings("ignore")
async def test_numbers_of_requests_at_their_bounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 0
    async with world.broker(tmp_path, enable_property_filter=True) as subject:
        for name in (requests.TOPIC, "T"):
            await subject.send(name, b"first")
        host, port = subject.address.rsplit(":", 1)
        for code, drafts in all_variants().items():
            reader, writer = await asyncio.open_connection(host, int(port))
            for draft in drafts:
                draft.flag = IS_ONEWAY
                writer.write(draft.encode())
                count += 1
            ping = Draft(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, opaque=77)
            writer.write(ping.encode())
            async with asyncio.timeout(60):
                while True:
                    size = int.from_bytes(await reader.readexactly(4))
                    if commands.decode(await reader.readexactly(size)).opaque == 77:
                        break
            writer.close()
            faults = [entry for entry in caplog.records if entry.exc_info]
            assert not faults, (RequestCode(code).name, [fault.getMessage() for fault in faults])
    assert count > 500
    for path in (tmp_path / "config").glob("*.json"):
        for number in saved_numbers(json.loads(path.read_text())):
            assert -LONG <= number < LONG, path
    caplog.set_level(logging.WARNING)
    async with world.broker(tmp_path) as subject:
        await subject.send("T", b"again")
    assert not [entry for entry in caplog.records if entry.exc_info]
