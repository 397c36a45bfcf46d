"""Count how far a request travels through the sources of reput, as a table in Markdown.

``python scripts/count_journeys.py [NAME ...]``; without names all journeys (``JOURNEYS``); with
``--calls`` the counted calls follow, in their order. Servers and clients run in this process. Each
journey is repeated until everything is warm; then the calls of its thread are recorded with
``sys.setprofile`` for some repetitions. The table has the most frequent result: a timer of the
broker may fire in others.

A row counts functions of ``src/reput``. Compiled kernels are not among them, nor are the event loop
and other packages.

* calls: functions that are entered, and resumptions of coroutines and generators. Comprehensions
  are part of their function.
* files: source files with such a function.
* lines: the lines of these functions, each function once, with their docstrings.
* moves: successive calls that are in different files.

The journeys of remoting and gRPC begin with the bytes of a request on a socket, and end with those
of the reply; clients are plain sockets. A gRPC send has a connection whose calls are too rare for a
kernel to read it. The slave's copy is what the slave's thread does for a message: it takes it,
reports to the master, and dispatches. An Arrow read is one of a topic in a small store, with one
thread; planning ends with ``scan``, before its first batch.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, NamedTuple

import reput
from reput import arrow
from reput.broker.server import Broker
from reput.broker.settings.config import BrokerConfig
from reput.format import command as commands, headers
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader, SendMessageHeader
from reput.grpc.server import FrontServer
from reput.grpc.wire.grpc_messages import METHODS, SERVICE
from reput.grpc.wire.protobuf import encode
from reput.store.config import BrokerRole, StoreConfig

SOURCES = str(Path(reput.__file__).parent)
TOPIC = "journeys"
BODY = b"x" * 128
WARM_UPS = 40
REPEATS = 9
ARROW_MESSAGES = 100
ARROW_WARM_UPS = 3
PAUSE_S = 0.1
"""Time between calls of gRPC, in seconds: a kernel reads connections with many calls a second."""
SLAVE_PAUSE_S = 0.005
"""Time in which a slave reports to its master what it has, in seconds."""


class Count(NamedTuple):
    """What a journey enters."""

    calls: int
    files: int
    lines: int
    moves: int


class Recorder:
    """Records the functions that a thread enters below a folder, and the threads that it starts.

    Args:
        folder: Folder of the sources.
    """

    calls_of: ClassVar[dict[Count, list[str]]] = {}
    """The latest calls with a count: ``file:line function``, indented by their depth."""

    def __init__(self, folder: str = SOURCES) -> None:
        self._folder = folder
        self._codes: list[CodeType] = []
        self._depths: list[int] = []

    def start(self) -> None:
        """Forget what was recorded, and record the calls of the present thread and of new ones."""
        self._codes, self._depths = [], []
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def stop(self) -> Count:
        """Stop; return what was recorded since ``start``. Threads that were started have ended."""
        sys.setprofile(None)
        threading.setprofile(None)
        return self._count(self._codes, self._depths)

    def take(self) -> Count:
        """Return what was recorded since the last call; recording continues."""
        codes, self._codes = self._codes, []
        depths, self._depths = self._depths, []
        return self._count(codes, depths)

    def _count(self, codes: list[CodeType], depths: list[int]) -> Count:
        count = counted(codes)
        self.calls_of[count] = [
            "  " * depth + f"{self._path(code)}:{code.co_firstlineno} {code.co_qualname}"
            for code, depth in zip(codes, depths, strict=True)
            if code.co_name not in _PARTS
        ]
        return count

    def _path(self, code: CodeType) -> str:
        return Path(code.co_filename).relative_to(self._folder).as_posix()

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._folder):
            self._codes.append(code)
            self._depths.append(sum(map(self._is_own, _callers(frame))))

    def _is_own(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._folder) and code.co_name not in _PARTS


def _callers(frame: FrameType) -> Iterator[CodeType]:
    """Return the functions in which a function was called."""
    while (caller := frame.f_back) is not None:
        yield caller.f_code
        frame = caller


def counted(codes: list[CodeType]) -> Count:
    """Return the figures of functions in the order of their calls."""
    own = [code for code in codes if code.co_name not in _PARTS]
    files = [code.co_filename for code in own]
    moves = sum(before != after for before, after in itertools.pairwise(files))
    return Count(len(own), len({*files}), sum(map(_line_count, {*own})), moves)


_PARTS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})


def _line_count(code: CodeType) -> int:
    """Return the number of lines from the first of a function to its last instruction."""
    parts = [part for part in code.co_consts if isinstance(part, CodeType)]
    lines = [line for _, _, line in code.co_lines() if line is not None]
    lines += [part.co_firstlineno + _line_count(part) - 1 for part in parts]
    return max(lines) - code.co_firstlineno + 1


def usual(counts: list[Count]) -> Count:
    """Return the most frequent count; of several the smallest."""
    return statistics.mode(sorted(counts))


# --- servers --------------------------------------------------------------------


def _store_config(root: Path, **settings: Any) -> StoreConfig:
    sizes = {"mapped_file_size_commit_log": 16 << 20, "max_index_num": 40_000}
    return StoreConfig(
        store_path_root_dir=str(root), **{**sizes, "max_hash_slot_num": 10_000, **settings}
    )


def _broker(root: Path, **settings: Any) -> Broker:
    here = {
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "broker_fast_failure_enable": False,  # no refusal on a busy machine, whose puts stall
    }
    own = {key: settings.pop(key) for key in ("broker_id", "reput_fast_path") if key in settings}
    return Broker(
        BrokerConfig(broker_name="broker-a", **here, **own), _store_config(root, **settings)
    )


class Connection:
    """A socket of a client, on the loop of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator["Connection"]:
        """Connect to a port of this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ask(self, request: Command) -> Command:
        """Send a request of remoting; return the reply."""
        self.writer.write(commands.encode(request))
        return await self.reply()

    async def reply(self) -> Command:
        """Return the next reply."""
        size = int.from_bytes(await self._reader.readexactly(4))
        return commands.decode(await self._reader.readexactly(size))

    async def frame(self) -> tuple[int, int]:
        """Read a frame of HTTP/2; return its type and its flags."""
        head = await self._reader.readexactly(9)
        await self._reader.readexactly(int.from_bytes(head[:3]))
        return head[3], head[4]


def send_request() -> Command:
    """Return the request of a send, as clients since 4.0 make it."""
    header = SendMessageHeader(
        producer_group="producers",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties="KEYS\x01key\x02UNIQ_KEY\x017F000001000000000000000000000001\x02TAGS\x01tag\x02",
    )
    fields = headers.encode_v2(header)
    return Command(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=BODY)


def pull_request() -> Command:
    """Return the request of a pull of the first message."""
    header = PullMessageHeader(
        consumer_group="consumers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    return Command(RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))


async def _exchanges(connection: Connection, request: Command, recorder: Recorder) -> list[Count]:
    """Send a request again and again; return the counts after the warm-up."""
    data = commands.encode(request)
    counts = []
    for number in range(WARM_UPS + REPEATS):
        recorder.start()
        connection.writer.write(data)
        await connection.reply()
        count = recorder.stop()
        if number >= WARM_UPS:
            counts.append(count)
    return counts


# --- journeys -------------------------------------------------------------------


async def _remoting(root: Path, request: Command, *, is_fast: bool) -> Count:
    async with (
        _broker(root, reput_fast_path=is_fast) as broker,
        Connection.open(broker.identity.port) as connection,
    ):
        await connection.ask(send_request())
        return usual(await _exchanges(connection, request, Recorder()))


def _frame(kind: int, flags: int, stream_id: int, content: bytes) -> bytes:
    head = len(content).to_bytes(3) + bytes([kind, flags])
    return head + stream_id.to_bytes(4) + content


def _grpc_call(stream_id: int, number: int) -> bytes:
    """Return the frames of a call with the fields of the SDK for Go, as plain literals."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/SendMessage",
        ":authority": "127.0.0.1:8081",
        "content-type": "application/grpc",
        "user-agent": "grpc-go/1.60.1",
        "te": "trailers",
        "grpc-timeout": "2999000u",
        "x-mq-language": "GO",
        "x-mq-client-version": "5.1.4",
        "x-mq-client-id": "journeys@1",
        "x-mq-protocol": "v2",
        "x-mq-request-id": f"{number:036}",
        "x-mq-date-time": "20261124T162200Z",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    message = {
        "topic": {"name": TOPIC},
        "user_properties": {"source": "journeys"},
        "system_properties": {
            "tag": "tag",
            "keys": ["key"],
            "message_id": f"01{number:032X}",
            "body_digest": {"type": 1, "checksum": f"{zlib.crc32(BODY):08X}"},
            "body_encoding": 1,
            "message_type": 1,
            "born_timestamp": {"seconds": 1_700_000_000, "nanos": 123_456_789},
            "born_host": "host",
        },
        "body": BODY,
    }
    content = encode(METHODS["SendMessage"].request, {"messages": [message]})
    body = b"\0" + len(content).to_bytes(4) + content
    return _frame(1, 4, stream_id, block) + _frame(0, 1, stream_id, body)


async def _grpc_send(root: Path) -> Count:
    """Send alone, so seldom that no kernel reads the connection."""
    recorder, counts = Recorder(), []
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(_broker(root))
        front = FrontServer(broker, 0)
        await front.start()
        stack.push_async_callback(front.stop)
        remoting = await stack.enter_async_context(Connection.open(broker.identity.port))
        await remoting.ask(send_request())  # makes the topic
        connection = await stack.enter_async_context(Connection.open(front.port))
        connection.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        for number in range(WARM_UPS + REPEATS):
            await asyncio.sleep(PAUSE_S)
            data = _grpc_call(2 * number + 1, number)
            recorder.start()
            connection.writer.write(data)
            while await connection.frame() != (1, 5):  # trailers
                pass
            counts.append(recorder.stop())
    return usual(counts[WARM_UPS:])


@contextmanager
def _slave(root: Path, master: Broker, recorder: Recorder) -> Iterator[Broker]:
    """Run a slave in a thread, whose calls are recorded."""
    started, stopped = threading.Event(), asyncio.Event()
    slave = _broker(
        root,
        broker_id=1,
        broker_role=BrokerRole.SLAVE,
        ha_master_address=f"127.0.0.1:{master.identity.ha_address.rpartition(':')[2]}",
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with slave:
            recorder.start()
            started.set()
            await stopped.wait()
            recorder.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield slave
    finally:
        loops[0].call_soon_threadsafe(stopped.set)
        thread.join()


async def _slave_copy(root: Path) -> Count:
    recorder, counts = Recorder(), []
    async with (
        _broker(root / "master", broker_role=BrokerRole.ASYNC_MASTER) as master,
        Connection.open(master.identity.port) as connection,
    ):
        with _slave(root / "slave", master, recorder) as slave:
            for _ in range(WARM_UPS + REPEATS):
                await connection.ask(send_request())
                end = master.store.max_physical_offset
                while slave.store.max_physical_offset < end:  # noqa: ASYNC110 - another thread's
                    await asyncio.sleep(0)
                await asyncio.sleep(SLAVE_PAUSE_S)
                counts.append(recorder.take())
    return usual(counts[WARM_UPS:])


async def _fill(root: Path) -> None:
    async with (
        _broker(root) as broker,
        Connection.open(broker.identity.port) as connection,
    ):
        for _ in range(ARROW_MESSAGES):
            await connection.ask(send_request())


def _arrow_reads(root: Path) -> tuple[Count, Count]:
    """Return the counts of planning and of reading."""
    asyncio.run(_fill(root))
    recorder = Recorder()
    planned, read = [], []
    for _ in range(ARROW_WARM_UPS + REPEATS):
        recorder.start()
        batches = arrow.scan(root, topic=TOPIC, threads=1)
        plan = recorder.stop()
        recorder.start()
        rows = sum(batch.num_rows for batch in batches)
        assert rows == ARROW_MESSAGES, rows
        planned.append(plan)
        read.append(recorder.stop())
    return usual(planned[ARROW_WARM_UPS:]), usual(read[ARROW_WARM_UPS:])


def _remoting_journey(request: Command, *, is_fast: bool) -> Callable[[Path], list[Count]]:
    return lambda root: [asyncio.run(_remoting(root, request, is_fast=is_fast))]


JOURNEYS: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {
    "send": (("send, fast path",), _remoting_journey(send_request(), is_fast=True)),
    "send-fallback": (("send, fallback",), _remoting_journey(send_request(), is_fast=False)),
    "pull": (("pull, fast path",), _remoting_journey(pull_request(), is_fast=True)),
    "pull-fallback": (("pull, fallback",), _remoting_journey(pull_request(), is_fast=False)),
    "grpc": (("gRPC send, one at a time",), lambda root: [asyncio.run(_grpc_send(root))]),
    "slave": (("slave's copy",), lambda root: [asyncio.run(_slave_copy(root))]),
    "arrow": (("Arrow read, planning", "Arrow read, reading"), _arrow_reads),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *JOURNEYS])
    parser.add_argument("--calls", action="store_true", help="list the counted calls as well")
    options = parser.parse_args()
    results: list[tuple[str, Count]] = []
    for name in options.names or JOURNEYS:
        labels, journey = JOURNEYS[name]
        with tempfile.TemporaryDirectory() as root:
            results += zip(labels, journey(Path(root)), strict=True)
    print("| journey | calls | files | lines | moves |\n|---|---|---|---|---|")
    for label, count in results:
        print(f"| {label} | " + " | ".join(f"{value:,}" for value in count) + " |")
    if options.calls:
        for label, count in results:
            print(f"\n{label}:", *Recorder.calls_of[count], sep="\n")


if __name__ == "__main__":
    main()
