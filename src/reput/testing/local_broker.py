"""A name server and a broker in a thread of the test process, on a folder of their own."""

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

from reput.broker.parts import Parts
from reput.broker.server import Broker
from reput.broker.settings import config as broker_config
from reput.broker.topic.topics import READ_WRITE
from reput.client.message import ReceivedMessage, received
from reput.errors import InvalidOption
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.time_slices import run_whole
from reput.store.config_tables import TopicConfig

HOST = "127.0.0.1"
SMALL: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20_000 * 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}
"""Files as small as a test's messages are few."""

DEFAULTS: Mapping[str, str] = {
    **SMALL,
    "brokerName": "broker-a",
    "enablePropertyFilter": "true",
    "listenPort": "0",
}
_FIXED = ("namesrvAddr", "storePathRootDir", "brokerIP1", "bindAddress")
_START_TIMEOUT_S = 60
_READ_COUNT = 1_000

_T = TypeVar("_T")


class LocalBroker:
    """A RocketMQ of the test's own, for any client: Java, Go, Python, mqadmin.

    It runs in a thread of its own, so ``with`` and ``async with`` are the same to it, and a test
    that blocks does not hold it up. Everything is gone at the end.

    Args:
        topics: Names to make at once, with 4 queues each, or name -> how many.
        settings: Keys of a broker.conf, such as ``{"flushDiskType": "SYNC_FLUSH"}``.
        folder: Where the store is; it stays there. None: a temporary one, which does not.

    Raises:
        InvalidOption: A setting is unknown or not allowed; on entering.
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
        self._parts: Parts | None = None
        self._name_server: NameServer | None = None
        self._built_in: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    # Starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Start; it serves on return.

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
        """Stop, and remove the temporary folder; nothing if it is not started."""
        thread = self._thread
        if thread is None:
            return
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(stop.set)
        thread.join()
        self._thread = self._loop = self._parts = self._name_server = None
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
        async with NameServer(names) as name_server:
            address = f"{HOST}:{name_server.port}"
            settings = self._load(address)
            async with Broker(settings.broker, settings.store) as broker:
                self._parts, self._name_server = broker.parts, name_server
                broker.store.add_listener(self._messages_arrived)
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
            for warning in loaded.warnings:  # in a test a slip of the pen shall not pass unseen
                if f"'{key}'" in warning or warning.startswith(f"{key} "):
                    raise InvalidOption(key, value, f"a key that has an effect ({warning})")
        return loaded

    # Using it ---------------------------------------------------------------------------------

    @property
    def store_folder(self) -> Path:
        """Where the store is; ``reput.store`` and ``reput store`` read it, while it runs too."""
        assert self._folder is not None, "a LocalBroker has a folder once it is started"
        return self._folder

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Make a topic, or change how many queues it has; clients find it on return.

        Raises:
            InvalidOption: It cannot have so many queues.
            RequestRefused: The name is none for a topic.
        """
        if queues < 1:
            raise InvalidOption("queues", queues, "1 or more")

        async def create() -> None:
            assert self._parts is not None
            self._parts.topics.check_name(name)
            self._put_topic(name, queues)
            await self._parts.registration.register()

        self._call(create())

    def messages(
        self, topic: str, *, at_least: int = 0, timeout_ms: int = 5_000
    ) -> list[ReceivedMessage]:
        """Return what is in a topic, in the order in which it arrived.

        Args:
            topic: Which; one that does not exist is empty.
            at_least: Wait until there are so many.
            timeout_ms: For how long.

        Raises:
            TimeoutError: There are fewer; the text says how many.
        """

        async def collect() -> list[ReceivedMessage]:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            assert self._arrived is not None
            while True:
                self._arrived.clear()
                found = self._read(topic)
                if len(found) >= at_least:
                    return found
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._arrived.wait()
                except TimeoutError:
                    text = f"{topic} has {len(found)} messages after {timeout_ms} ms"
                    raise TimeoutError(f"{text}, not {at_least}") from None

        return self._call(collect())

    def clear(self) -> None:
        """Delete all topics and groups but those that were there at first, and all offsets.

        A topic that is made anew begins at queue offset 0. Clients should be closed before.
        """

        async def delete() -> None:
            parts, name_server = self._parts, self._name_server
            assert parts is not None
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
        if self._loop is None or self._parts is None:
            what.close()
            raise RuntimeError("this LocalBroker is not started: use it within `with`")
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def _put_topic(self, name: str, queue_count: int) -> None:
        assert self._parts is not None
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
        assert self._parts is not None
        store, name = self._parts.store, self._parts.settings.broker.broker_name
        found: list[ReceivedMessage] = []
        for queue_id, queue in store.queues.of_topic(topic).items():
            at = queue.min_offset
            while at < queue.max_offset:
                result = store.get(topic, queue_id, at, _READ_COUNT)
                if result.next_offset <= at:
                    break
                found += received(bytes(result.data), name)
                at = result.next_offset
        return sorted(found, key=lambda one: one.physical_offset)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
