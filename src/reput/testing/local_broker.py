"""A name server and a broker in a thread of the test process, with their own folder."""

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
from reput.broker.parts import Parts
from reput.broker.server import Broker
from reput.broker.settings import config as broker_config
from reput.broker.topic.topics import READ_WRITE
from reput.client.message import ReceivedMessage, received
from reput.errors import InvalidOption
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting import tls_settings
from reput.remoting.time_slices import run_whole
from reput.store.config_tables import TopicConfig

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
    "listenPort": "0",
}
_FIXED = ("namesrvAddr", "storePathRootDir", "brokerIP1", "bindAddress")
_START_TIMEOUT_S = 60
_READ_COUNT = 1_000
_LOOK_S = 0.01

_T = TypeVar("_T")


class LocalBroker:
    """A RocketMQ for a test, for any client: Java, Go, Python, mqadmin.

    It runs in its own thread, so that a blocking test does not stop it; it works with ``with`` and
    ``async with``. Everything is deleted at the end.

    Args:
        topics: Names of topics to create, with 4 queues each, or name to number of queues.
        settings: Keys of a broker.conf, such as ``{"flushDiskType": "SYNC_FLUSH"}``.
        folder: Store folder, which is kept. None: a temporary folder, which is deleted.

    Raises:
        InvalidOption: A setting is unknown or not allowed; raised on entering.
    """

    def __init__(
        self,
        *,
        topics: Iterable[str] | Mapping[str, int] = (),
        settings: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self.namesrv_addr = ""
        """``host:port`` for clients, once it is started."""
        self.broker_addr = ""
        self._topics = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 4)
        self._settings = dict(settings or {})
        self._wanted_folder = folder
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._arrived: asyncio.Event | None = None
        self._broker: Broker | None = None
        self._name_server: NameServer | None = None
        self._built_in: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

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
        self._thread = self._loop = self._broker = self._name_server = None
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
        self._arrived = asyncio.Event()
        root = self.store_folder
        names = NamesrvConfig(
            bind_address=HOST,
            listen_port=0,
            kv_config_path=str(root / "namesrv" / "kvConfig.json"),
            config_store_path=str(root / "namesrv" / "namesrv.properties"),
        )
        tls = tls_settings.load(config.Settings(self._settings))
        async with NameServer(CurrentConfig(names, tls=tls)) as name_server:
            address = f"{HOST}:{name_server.port}"
            settings = self._load(address)
            broker = Broker(settings.broker, settings.store, tls=tls, access=settings.access)
            broker.on_open = lambda: self._opened(broker)
            async with broker:
                self._broker, self._name_server = broker, name_server
                self._built_in = (
                    frozenset(broker.parts.topics.all()),
                    frozenset(broker.parts.subscription_groups.all()),
                )
                for topic, queue_count in self._topics.items():
                    self._put_topic(topic, queue_count)
                await broker.parts.registration.register()
                self.namesrv_addr, self.broker_addr = address, broker.identity.address
                self._started.set_result(None)
                await self._stop.wait()

    def _load(self, namesrv_addr: str) -> broker_config.BrokerSettings:
        for key in _FIXED:
            if key in self._settings:
                raise InvalidOption(key, self._settings[key], "left out: a LocalBroker sets it")
        loaded = broker_config.load(
            {
                **DEFAULTS,
                **self._settings,
                "brokerIP1": HOST,
                "bindAddress": HOST,
                "namesrvAddr": namesrv_addr,
                "storePathRootDir": str(self.store_folder),
            }
        )
        for key, value in self._settings.items():
            for warning in loaded.warnings:  # a typing error in a test must not pass
                if f"'{key}'" in warning or warning.startswith(f"{key} "):
                    raise InvalidOption(key, value, f"a key that has an effect ({warning})")
        return loaded

    # Using it ---------------------------------------------------------------------------------

    @property
    def store_folder(self) -> Path:
        """Store folder, readable by ``reput.store`` and ``reput store`` even while it runs."""
        assert self._folder is not None, "a LocalBroker has a folder once it is started"
        return self._folder

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Create a topic, or change its number of queues; clients find it on return.

        Raises:
            InvalidOption: The number of queues is not allowed.
            RequestRefused: The name is not allowed.
        """
        if queues < 1:
            raise InvalidOption("queues", queues, "1 or more")

        async def create() -> None:
            self._parts.topics.check_name(name)
            self._put_topic(name, queues)
            await self._parts.registration.register()

        self._call(create())

    def messages(
        self, topic: str, *, at_least: int = 0, timeout_ms: int = 5_000
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic, in the order of arrival.

        Args:
            topic: The topic; an unknown one is empty.
            at_least: Wait for this number of messages.
            timeout_ms: Maximum time to wait, in ms.

        Raises:
            TimeoutError: There are fewer; the text has their number.
        """

        async def collect() -> list[ReceivedMessage]:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            assert self._arrived is not None
            while True:
                await self._until_open()
                self._arrived.clear()
                messages = self._read(topic)
                if len(messages) >= at_least:
                    return messages
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._arrived.wait()
                except TimeoutError:
                    text = f"{topic} has {len(messages)} messages after {timeout_ms} ms"
                    raise TimeoutError(f"{text}, not {at_least}") from None

        return self._call(collect())

    def clear(self) -> None:
        """Delete all topics and groups created since the start, and all offsets.

        A recreated topic starts at queue offset 0. Close the clients first.
        """

        async def delete() -> None:
            parts, name_server = self._parts, self._name_server
            assert name_server is not None
            now_ms = parts.clock.now_ms()
            topics, groups = self._built_in
            doomed = {*parts.topics.all(), *parts.store.queues.topics()} - topics
            for topic in doomed:
                parts.topics.delete(topic, now_ms)
                parts.store.delete_topic(topic)
                parts.deliveries.consumer_offsets.delete(topic=topic)
                run_whole(parts.deliveries.stats.forget_topic(topic))
                name_server.routes.delete_topic(topic)
            for group in parts.subscription_groups.all().keys() - groups:
                parts.subscription_groups.delete(group, now_ms)
                parts.deliveries.consumer_offsets.delete(group=group)
                run_whole(parts.deliveries.stats.forget_group(group))
            for topic, queue_count in self._topics.items():
                self._put_topic(topic, queue_count)
            await parts.registration.register()

        self._call(delete())

    # On the broker's thread -------------------------------------------------------------------

    def _call(self, what: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the broker's thread, and wait for it."""
        if self._loop is None or self._broker is None:
            what.close()
            raise RuntimeError("this LocalBroker is not started: use it within `with`")

        async def run() -> _T:
            try:
                await self._until_open()
            except BaseException:
                what.close()
                raise
            return await what

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    @property
    def _parts(self) -> Parts:
        """The current parts: others after a change of the role."""
        assert self._broker is not None
        return self._broker.parts

    async def _until_open(self) -> None:
        """Wait while the broker reopens its store. Raises ``RuntimeError`` if it has failed."""
        broker = self._broker
        assert broker is not None
        while not broker.is_open:
            if broker.failure is not None:
                raise RuntimeError(f"the broker could not reopen its store: {broker.failure}")
            await asyncio.sleep(_LOOK_S)

    def _opened(self, broker: Broker) -> None:
        broker.store.add_listener(self._messages_arrived)
        assert self._arrived is not None
        self._arrived.set()

    def _put_topic(self, name: str, queue_count: int) -> None:
        topic = TopicConfig(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=READ_WRITE,
        )
        self._parts.topics.put(topic, self._parts.clock.now_ms())

    def _messages_arrived(self, topic: str, queue_id: int, first: int, behind: int) -> None:
        assert self._arrived is not None
        self._arrived.set()

    def _read(self, topic: str) -> list[ReceivedMessage]:
        store, name = self._parts.store, self._parts.settings.broker.broker_name
        messages: list[ReceivedMessage] = []
        for queue_id, queue in store.queues.of_topic(topic).items():
            queue_offset = queue.min_offset
            while queue_offset < queue.max_offset:
                result = store.get(topic, queue_id, queue_offset, _READ_COUNT)
                if result.next_offset <= queue_offset:
                    break
                messages += received(bytes(result.data), name)
                queue_offset = result.next_offset
        return sorted(messages, key=lambda message: message.physical_offset)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
