"""PullConnections: pulls and their replies over a socket, with a scripted broker."""

import itertools
import socket
from collections.abc import Iterator

import pytest

from reput.client.core import requests
from reput.errors import ConnectionLost, NotAFrame, RequestTimedOut, Unreachable
from reput.format import command as commands, headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.spark.live.pull_connection import (
    PullConnection,
    PullConnections,
    PullReply,
    PullTemplate,
    read_reply,
)
from waiting import wait_until

WAIT_S = 20.0


def pull(queue_offset: int, count: int, topic: str = "Orders", expression: str = "*") -> Command:
    header = headers.PullMessageHeader(
        consumer_group="g",
        topic=topic,
        queue_id=3,
        queue_offset=queue_offset,
        max_msg_nums=count,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=expression,
        sub_version=0,
        expression_type="TAG",
    )
    return requests.make(RequestCode.PULL_MESSAGE, header)


def answer(opaque: int, next_offset: int, body: bytes, code: int = 0) -> bytes:
    """Return a reply as a broker sends it."""
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "100",
    }
    return commands.encode(
        commands.reply(Command(11, opaque), code, "FOUND", ext_fields=fields, body=body)
    )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        yield listening


def address_of(listening: socket.socket) -> str:
    return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def ends(listener: socket.socket) -> Iterator[tuple[PullConnection, socket.socket]]:
    """Yield a connection and the broker's end of it."""
    line = PullConnection(address_of(listener))
    broker, _ = listener.accept()
    broker.settimeout(WAIT_S)
    with broker:
        yield line, broker
    line.close()


def test_requests_equal_those_of_the_client(ends: tuple[PullConnection, socket.socket]) -> None:
    """For any topics and expressions, and three numbers."""
    line, broker = ends
    names = ("Orders", "100%d", '"opaque":0,', '"queueOffset":"0"')
    asked = [
        (line.ask(PullTemplate(pull(0, 0, name, name)), place, count), place, count, name)
        for name in names
        for place, count in ((0, 1), (1 << 62, 32))
    ]
    line.send()
    stream = broker.makefile("rb")
    for opaque, queue_offset, count, name in asked:
        size = int.from_bytes(stream.read(4))
        command = commands.decode(stream.read(size))
        expected = pull(queue_offset, count, name, name)
        expected.opaque = opaque
        assert command == expected
    assert len({opaque for opaque, *_ in asked}) == len(asked)


def test_replies_may_be_cut_at_any_byte(ends: tuple[PullConnection, socket.socket]) -> None:
    line, broker = ends
    expected = [
        PullReply(7, 0, "FOUND", 32, b"first"),
        PullReply(6, ResponseCode.PULL_RETRY_IMMEDIATELY, "FOUND", 64, b""),
    ]
    data = answer(7, 32, b"first") + answer(6, 64, b"", ResponseCode.PULL_RETRY_IMMEDIATELY)
    for cut in range(1, len(data)):
        broker.sendall(data[:cut])
        replies = line.receive(WAIT_S, 1)
        broker.sendall(data[cut:])
        while len(replies) < len(expected):
            replies += line.receive(WAIT_S, 1)
        assert replies == expected


def test_a_reply_larger_than_a_read(ends: tuple[PullConnection, socket.socket]) -> None:
    line, broker = ends
    broker.setblocking(False)
    body = bytes(range(256)) * 20_000
    data = memoryview(answer(1, 32, body) + answer(2, 64, b"x"))
    replies: list[PullReply] = []
    while len(replies) < 2:
        if data:
            data = data[broker.send(data) :]
        replies += line.receive(WAIT_S, 1)
    assert [reply.records for reply in replies] == [body, b"x"]


def test_a_reply_without_fields_has_no_records() -> None:
    """The reader repeats the pull through the client, which can report the error."""
    fields = (None, {"nextBeginOffset": "many"}, {"other": "1"})
    for serialization, of_reply in itertools.product(commands.Serialization, fields):
        request = Command(11, 5, serialization=serialization)
        frame = commands.encode(commands.reply(request, 1, "broken", ext_fields=of_reply))[4:]
        assert read_reply(memoryview(frame)) == PullReply(5, 1, "broken", 0, b"")
    whole = answer(1, 2, b"x")[4:]
    for cut in range(4, len(whole) - 1):  # shorter data is never a frame
        with pytest.raises(NotAFrame):
            read_reply(memoryview(whole[:cut]))


def test_a_closed_connection_is_an_error(
    ends: tuple[PullConnection, socket.socket], listener: socket.socket
) -> None:
    line, broker = ends
    asks = commands.encode(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1))
    broker.sendall(asks + answer(1, 2, b"x"))  # requests of a broker are ignored
    assert line.receive(WAIT_S, 1) == [PullReply(1, 0, "FOUND", 2, b"x")]
    with pytest.raises(RequestTimedOut, match="within 77 ms"):
        line.receive(0, 77)
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="closed by the other side"):
        line.receive(WAIT_S, 1)
    other = PullConnection(address_of(listener))
    with listener.accept()[0] as server:
        server.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectionLost, match="is the other side a RocketMQ client or broker"):
            other.receive(WAIT_S, 1)
    other.close()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: "):
        PullConnection("127.0.0.1:1")


def test_replies_are_received_while_a_broker_does_not_read(
    ends: tuple[PullConnection, socket.socket],
) -> None:
    line, broker = ends
    template = PullTemplate(pull(0, 0, expression="x" * 8000))
    for queue_offset in range(2000):
        line.ask(template, queue_offset, 32)
    broker.sendall(answer(1, 32, b"x"))
    assert [reply.opaque for reply in line.receive(WAIT_S, 1)] == [1]
    broker.setblocking(False)
    asked = 0
    while asked < 2000 * 8000:
        line.send()
        try:
            asked += len(broker.recv(1 << 20))
        except BlockingIOError:
            continue
    assert line.is_quiet()


def test_idle_connections_are_reused_until_data_arrives(listener: socket.socket) -> None:
    lines = PullConnections()
    address = address_of(listener)

    def accepted() -> socket.socket:
        return listener.accept()[0]

    line = lines.take(address)
    first = accepted()
    lines.give_back(line)
    assert lines.take(address) is line
    lines.give_back(line)
    first.sendall(answer(1, 2, b"nobody waits"))
    wait_until(lambda: not line.is_quiet())
    with first:
        after_stale = lines.take(address)
    assert after_stale is not line
    second = accepted()
    lines.give_back(after_stale)
    second.close()
    wait_until(lambda: not after_stale.is_quiet())
    after_end = lines.take(address)
    assert after_end is not after_stale
    with accepted() as third:
        lines.give_back(after_end)
        lines.close()
        third.settimeout(WAIT_S)
        assert third.recv(1) == b""
