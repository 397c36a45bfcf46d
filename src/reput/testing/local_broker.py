"""A name server and brokers in a thread of the test process, with their own folder."""

import asyncio
import concurrent.futures
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from reput import config
from reput.broker.server import Broker
from reput.broker.settings import config as broker_config
from reput.broker.topic import attributes
from reput.client.message import ReceivedMessage
from reput.errors import InvalidOption
from reput.format.codes import ResponseCode
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting import tls_settings
from reput.testing.controls import Controls
from reput.testing.faults import Faults, FaultyPort
from reput.testing.shifted_clock import ShiftedClock

HOST = "127.0.0.1"
SMALL: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20_000 * 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}
"""Settings with small files."""

DEFAULTS: Mapping[str, str] = {
    **SMALL,
    "brokerName": "broker-a",
    "enablePropertyFilter": "true",
    "enableMultiDispatch": "true",
    "listenPort": "0",
}
BROKERS_MAX = 8
_FIXED = ("namesrvAddr", "storePathRootDir", "brokerIP1", "bindAddress")
_START_TIMEOUT_S = 60

_T = TypeVar("_T")


class LocalBroker:
    """A RocketMQ for a test, for any client: Java, Go, Python, mqadmin.

    It runs in its own thread, so that a blocking test does not stop it; it works with ``with`` and
    ``async with``. Everything is deleted at the end.

    Args:
        topics: Names of topics to create, with 4 queues each, or name to number of queues.
        settings: Keys of a broker.conf, such as ``{"flushDiskType": "SYNC_FLUSH"}``.
        folder: Store folder, which is kept. None: a temporary folder, which is deleted.
        brokers: Number of brokers, all masters: ``broker-a``, ``broker-b``, and so on.

    Raises:
        InvalidOption: The number of brokers is not allowed. On entering: a setting is not.
    """

    def __init__(
        self,
        *,
        topics: Iterable[str] | Mapping[str, int] = (),
        settings: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
        brokers: int = 1,
    ) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise InvalidOption("brokers", brokers, f"1 to {BROKERS_MAX}")
        self.namesrv_addr = ""
        """``host:port`` for clients, once it is started."""
        self.broker_addrs: tuple[str, ...] = ()
        """``host:port`` of each broker, once it is started."""
        self._topics = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 4)
        self._settings = dict(settings or {})
        self._wanted_folder = folder
        self._broker_count = brokers
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._brokers: list[Broker] = []
        self._controls: Controls | None = None
        self._running_parts: contextlib.AsyncExitStack | None = None
        self._grpc_endpoint = ""

    # Starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Start; on return it is serving.

        Raises:
            InvalidOption: A setting is unknown or not allowed.
        """
        if self._thread is not None:
            raise RuntimeError("this LocalBroker runs already; make another one")
        self._folder = Path(self._wanted_folder or tempfile.mkdtemp(prefix="reput-"))
        self._started = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="reput-local-broker", daemon=True)
        self._thread.start()
        try:
            self._started.result(_START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop, and delete a temporary folder; does nothing if it is not started."""
        thread = self._thread
        if thread is None:
            return
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(stop.set)
        thread.join()
        self._thread = self._loop = self._controls = None
        self._brokers = []
        self._running_parts, self._grpc_endpoint = None, ""
        if self._wanted_folder is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where it was started
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        root = self.store_folder
        names = NamesrvConfig(
            bind_address=HOST,
            listen_port=0,
            kv_config_path=str(root / "namesrv" / "kvConfig.json"),
            config_store_path=str(root / "namesrv" / "namesrv.properties"),
        )
        clock, faults = ShiftedClock(), Faults()
        tls = tls_settings.load(config.Settings(self._settings))
        async with contextlib.AsyncExitStack() as running:
            name_server = await running.enter_async_context(
                NameServer(CurrentConfig(names, tls=tls))
            )
            address = f"{HOST}:{name_server.port}"
            for number in range(self._broker_count):
                settings = self._load(address, number)
                broker = Broker(
                    settings.broker,
                    settings.store,
                    clock=clock,
                    tls=tls,
                    access=settings.access,
                    wrap_port=lambda port: FaultyPort(port, faults),
                )
                self._brokers.append(await running.enter_async_context(broker))
            controls = Controls(name_server, self._brokers, clock, faults, self._topics)
            await controls.create_topics()
            self._controls, self._running_parts = controls, running
            self.namesrv_addr = address
            self.broker_addrs = tuple(broker.identity.address for broker in self._brokers)
            self._started.set_result(None)
            await self._stop.wait()

    def _load(self, namesrv_addr: str, number: int) -> broker_config.BrokerSettings:
        """Return the settings of a broker: the first has number 0."""
        own: dict[str, str] = {}
        if self._broker_count > 1:
            own["brokerName"] = f"broker-{chr(ord('a') + number)}"
        for key in (*_FIXED, *own):
            if key in self._settings:
                raise InvalidOption(key, self._settings[key], "left out: a LocalBroker sets it")
        loaded = broker_config.load(
            {
                **DEFAULTS,
                **self._settings,
                **own,
                "brokerIP1": HOST,
                "bindAddress": HOST,
                "namesrvAddr": namesrv_addr,
                "storePathRootDir": str(self._store_folders[number]),
            }
        )
        for key, value in self._settings.items():
            for warning in loaded.warnings:  # a typing error in a test must not pass
                if f"'{key}'" in warning or warning.startswith(f"{key} "):
                    raise InvalidOption(key, value, f"a key that has an effect ({warning})")
        return loaded

    # Using it ---------------------------------------------------------------------------------

    @property
    def broker_addr(self) -> str:
        """``host:port`` of the first broker, once it is started."""
        return self.broker_addrs[0] if self.broker_addrs else ""

    @property
    def grpc_endpoint(self) -> str:
        """``host:port`` for 5.x clients of the first broker, plain and with TLS.

        The port is opened when this is first read. Topics for such clients have a type of
        messages: ``create_topic(name, message_type="FIFO")``.
        """
        if not self._grpc_endpoint:
            self._grpc_endpoint = self._call(self._open_front)
        return self._grpc_endpoint

    async def _open_front(self, controls: Controls) -> str:
        from reput.grpc.server import FrontServer  # most tests do not need it

        assert self._running_parts is not None, "it runs"
        front = FrontServer(self._brokers[0], 0)
        await front.start()
        self._running_parts.push_async_callback(front.stop)
        return f"{HOST}:{front.port}"

    @property
    def store_folder(self) -> Path:
        """Store folder, readable by ``reput.store`` and ``reput store`` even while it runs.

        With several brokers it has a folder of each, with the broker's name.
        """
        assert self._folder is not None, "a LocalBroker has a folder once it is started"
        return self._folder

    @property
    def _store_folders(self) -> list[Path]:
        if self._broker_count == 1:
            return [self.store_folder]
        letters = map(chr, range(ord("a"), ord("a") + self._broker_count))
        return [self.store_folder / f"broker-{letter}" for letter in letters]

    def create_topic(self, name: str, queues: int = 4, *, message_type: str | None = None) -> None:
        """Create a topic, or change its number of queues; clients find it on return.

        Args:
            name: Name of the topic.
            queues: Number of its queues.
            message_type: Type of its messages, which clients of gRPC must keep to: NORMAL, which is
                theirs without one, FIFO, DELAY, TRANSACTION, PRIORITY, or MIXED.

        Raises:
            InvalidOption: The number of queues or the type is not allowed.
            RequestRefused: The name is not allowed.
        """
        if queues < 1:
            raise InvalidOption("queues", queues, "1 or more")
        if message_type is not None:
            allowed = attributes.OF_TOPICS[attributes.MESSAGE_TYPE].values
            if not allowed.allows(message_type):
                raise InvalidOption("message_type", message_type, str(allowed))
        self._call(lambda controls: controls.create_topic(name, queues, message_type))

    def clear(self) -> None:
        """Delete topics and groups created since the start, offsets, waiting messages and faults.

        A recreated topic starts at queue offset 0. The clock stays. Close the clients first.
        """
        self._call(Controls.clear)

    def messages(
        self, topic: str, *, at_least: int = 0, timeout_ms: int = 5_000
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic, in the order of arrival.

        Args:
            topic: The topic; an unknown one is empty.
            at_least: Wait for this number of messages; not on an event loop, see ``wait_for``.
            timeout_ms: Maximum time to wait, in ms.

        Raises:
            TimeoutError: There are fewer; the text has their number.
            RuntimeError: It would wait and stop the event loop of this thread.
        """
        if at_least:
            _refuse_to_block(
                f"messages({topic!r}, at_least={at_least})", f"wait_for({topic!r}, {at_least})"
            )
        return self._call(lambda controls: controls.messages(topic, at_least, timeout_ms))

    async def wait_for(
        self, topic: str, count: int = 1, *, timeout_ms: int = 5_000
    ) -> list[ReceivedMessage]:
        """Wait until a topic has this number of messages; return all, in the order of arrival.

        Raises:
            TimeoutError: There are fewer; the text has their number.
        """
        return await self._call_async(lambda controls: controls.messages(topic, count, timeout_ms))

    def wait_until_consumed(self, group: str, *, timeout_ms: int = 30_000) -> None:
        """Wait until a group has consumed all messages of its topics, and committed that.

        Push consumers commit every 5 s: set ``persist_offsets_ms`` of the client for less. Messages
        that wait for a retry do not count before their time.

        Raises:
            TimeoutError: It has not; the text names the first queue with messages left.
            InvalidOption: The group is broadcasting: its members keep their offsets.
            RuntimeError: It would stop the event loop of this thread.
        """
        call = f"wait_until_consumed({group!r})"
        _refuse_to_block(call, f"wait_until_consumed_async({group!r})")
        self._call(lambda controls: controls.until_consumed(group, timeout_ms))

    async def wait_until_consumed_async(self, group: str, *, timeout_ms: int = 30_000) -> None:
        """Wait like ``wait_until_consumed``, without blocking the event loop."""
        await self._call_async(lambda controls: controls.until_consumed(group, timeout_ms))

    # Time -------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Time of the brokers, in ms since the epoch."""
        return self._running.clock.now_ms()

    def advance(self, duration_ms: int) -> None:
        """Advance the time of the brokers, which cannot be set back.

        On return everything that is due by then is in its queues: messages of delay levels and
        delivery times, retries of consumers, popped messages whose invisible time is over. The
        producers of transactions that are undecided for ``transactionTimeOut`` are asked once.
        Connections stay.

        The timer delivers at whole seconds (``timerPrecisionMs``): if a delivery time within the
        advance is rounded up past its end, the time continues to that second.

        Raises:
            InvalidOption: The duration is not 0 to 400 days.
            TimeoutError: There is too much to deliver.
        """
        self._call(lambda controls: controls.advance(duration_ms))

    async def advance_async(self, duration_ms: int) -> None:
        """Advance like ``advance``, without blocking the event loop."""
        await self._call_async(lambda controls: controls.advance(duration_ms))

    # Faults -----------------------------------------------------------------------------------

    def fail_next(
        self,
        count: int = 1,
        *,
        code: int = ResponseCode.SYSTEM_BUSY,
        remark: str | None = None,
        request: str = "send",
    ) -> None:
        """Refuse the next requests of a kind; nothing is stored for them.

        Args:
            count: Number of requests; a retry of the client is another one.
            code: Response code of the replies.
            remark: Text of the replies.
            request: ``send``, ``pull``, ``pop``, ``ack``, ``send-back``, ``end-transaction``,
                ``commit-offset`` or ``heartbeat``.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        self._call_now(lambda controls: controls.faults.refuse_next(count, code, remark, request))

    def drop_next(self, count: int = 1, *, request: str = "send", stored: bool = False) -> None:
        """Close the connection of the next requests of a kind instead of a reply.

        Args:
            count: Number of requests; a retry of the client is another one.
            request: As in ``fail_next``.
            stored: Serve the request before: a message is stored, and its sender does not know.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        self._call_now(lambda controls: controls.faults.drop_next(count, request, is_served=stored))

    def slow(self, delay_ms: int, *, request: str = "send") -> None:
        """Let all requests of a kind wait before they are served; 0 ends it.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        self._call_now(lambda controls: controls.faults.slow(delay_ms, request))

    def drop_connections(self) -> int:
        """Close all connections of clients to the brokers; return their number."""
        return self._call_now(lambda controls: controls.faults.drop_connections())

    def restart(self) -> None:
        """Stop the brokers, and start them again at the same ports, with their messages.

        Raises:
            RuntimeError: A broker could not start again.
        """
        self._call(Controls.restart)

    async def restart_async(self) -> None:
        """Restart like ``restart``, without blocking the event loop."""
        await self._call_async(Controls.restart)

    # On the brokers' thread -------------------------------------------------------------------

    @property
    def _running(self) -> Controls:
        if self._controls is None:
            raise RuntimeError("this LocalBroker is not started: use it within `with`")
        return self._controls

    def _submit(
        self, make: Callable[[Controls], Coroutine[Any, Any, _T]]
    ) -> "concurrent.futures.Future[_T]":
        """Run a coroutine on the brokers' thread."""
        controls, loop = self._running, self._loop
        assert loop is not None

        async def run() -> _T:
            await controls.until_open()
            return await make(controls)

        return asyncio.run_coroutine_threadsafe(run(), loop)

    def _call(self, make: Callable[[Controls], Coroutine[Any, Any, _T]]) -> _T:
        return self._submit(make).result()

    async def _call_async(self, make: Callable[[Controls], Coroutine[Any, Any, _T]]) -> _T:
        return await asyncio.wrap_future(self._submit(make))

    def _call_now(self, function: Callable[[Controls], _T]) -> _T:
        async def run(controls: Controls) -> _T:
            return function(controls)

        return self._call(run)


def _refuse_to_block(call: str, instead: str) -> None:
    """Raise ``RuntimeError`` if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    text = f"{call} would stop the event loop that runs in this thread"
    raise RuntimeError(f"{text}; use `await mq.{instead}`")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
