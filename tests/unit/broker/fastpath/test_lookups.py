"""Replies of the lookups that a kernel answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from reput.broker.fastpath.lookups import FastLookups
from reput.broker.fastpath.send_ingest import SendIngest
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.message import Host
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from store_fixture import Stores, needs_kernels
from store_subject import Subject

pytestmark = needs_kernels

KEYS = ("a", "b", "ab", "BB", "Aa")  # the last two have one hash
ONCE = [HealthCheck.function_scoped_fixture]


def query(key: str) -> bytes:
    fields = {"topic": "TopicA", "key": key, "maxNum": "32"}
    times = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    return commands.encode(Command(RequestCode.QUERY_MESSAGE, 7, ext_fields=fields | times))


class Answering:
    """A store that answers lookups, and its memory."""

    def __init__(self, stores: Stores) -> None:
        subject = Subject("async", stores, max_hash_slot_num=3, max_index_num=16)
        for key in KEYS[:3] * 3:
            subject.clock.advance(10)
            subject.put("TopicA", keys=key)
        store = subject.store
        assert isinstance(store, MessageStore)
        SendIngest(store).open(Host(bytes(4), 1), b"", b"")
        self.lookups = FastLookups(store)
        self.block = store.hot_state.block
        self.replies = np.zeros(4096, np.uint8)
        self.block.replies_address = hot.address_of(self.replies)

    def answer(self, frames: bytes) -> tuple[int, int, bytes]:
        received = np.frombuffer(frames + b"\0", np.uint8)
        self.block.receive_address = hot.address_of(received)
        return self.lookups.answer(0, len(frames), 100, 32)


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Answering]:
    stores = Stores(tmp_path)
    yield Answering(stores)
    stores.check()


@given(st.integers(0, 1500), st.lists(st.sampled_from(KEYS), max_size=12))
@settings(deadline=None, max_examples=40, suppress_health_check=ONCE)
def test_replies_stay_in_their_room(answering: Answering, room: int, keys: list[str]) -> None:
    frames = b"".join(map(query, keys))
    answering.replies[:] = 0xA5
    answering.block.replies_room = room
    count, position, replies = answering.answer(frames)
    assert not any(answering.replies[room:] != 0xA5)
    assert answering.replies[: len(replies)].tobytes() == replies
    assert position == len(b"".join(map(query, keys[:count])))
    assert len(replies) <= room
