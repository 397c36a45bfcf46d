"""Sends at which the kernel stops: the missing queues are created, some in each call."""

import ctypes
from pathlib import Path

from reput.broker.fastpath import send_ingest
from reput.broker.fastpath.send_ingest import SendIngest
from reput.clock import ManualClock
from reput.format import command
from reput.format.command import Command
from reput.format.message import Host
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from store_fixture import needs_kernels

pytestmark = needs_kernels

HOST = Host(bytes([127, 0, 0, 1]), 10911)
QUEUES = 200


def send(queue_id: int) -> bytes:
    fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
    return command.encode(Command(310, queue_id, ext_fields=fields, body=b"x"))


def test_first_messages_of_many_queues_take_several_calls(tmp_path: Path) -> None:
    """Python creates each queue: other requests run in between."""
    store = MessageStore.open(str(tmp_path), StoreConfig(), clock=ManualClock(1_700_000_000_000))
    ingest = SendIngest(store)
    ingest.open(HOST, b"", b"b")
    store.put(IncomingMessage("T", b"x", QUEUES))
    store.set_write_queues("T", QUEUES + 1)
    data = bytearray(b"".join(map(send, range(QUEUES))))
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    position = 0
    counts: list[int] = []
    while position < len(data):
        received = ingest.receive(address, position, len(data), HOST)
        assert not received.has_frame
        assert received.has_more == (received.position < len(data))
        assert received.replies.count(b'"queueId"') == received.send_count
        counts.append(received.send_count)
        position = received.position
    assert sum(counts) == QUEUES
    assert max(counts) <= send_ingest._STOPS_MAX
    again = ingest.receive(address, 0, len(data), HOST)
    assert (again.send_count, again.has_more) == (QUEUES, False)
    assert [store.max_offset("T", queue_id) for queue_id in range(QUEUES)] == [2] * QUEUES
    store.close()
