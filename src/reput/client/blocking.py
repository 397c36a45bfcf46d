"""Clients without ``await``, for programs without an event loop.

    with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        result = producer.send(Message("Orders", b"one"))

Names, arguments and errors are those of ``reput.client``: each method runs the asyncio method and
waits for it. All clients of a process share one event loop in a background thread, which starts
with the first client and stops with the last. They can be used from any thread except that one, and
in the process that started them: a forked child starts its own. In a thread that runs an event
loop, a call is a ``RuntimeWarning``: that loop stops until the call ends. The fastest way to send
many messages is one call of ``send_many``.
"""

import asyncio
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from reput.client import (
    admin,
    pop_consumer,
    producer,
    pull_consumer,
    push_consumer,
    transaction_producer,
)
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from reput.client.connection_events import ConnectionCallback
from reput.client.core.assign import Strategy
from reput.client.instance import NotStarted, StartedElsewhere, client_name
from reput.client.listener import Listener
from reput.client.message import Message, ReceivedMessage, SendResult, SendStatus
from reput.client.rebalance_calls import QueuesCallback
from reput.client.transaction_producer import (
    Check,
    TransactionResult,
    TransactionState,
    checked_state,
)
from reput.client.with_statement import PlainWithOnly
from reput.clock import Clock

P = ParamSpec("P")
R = TypeVar("R")


class AsyncClient(Protocol):
    """Interface of an asyncio client; made in any thread, used in the loop's."""

    async def start(self) -> None:
        """Start the client."""

    async def close(self) -> None:
        """Close the client."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Close the client, given the exception that ended the block."""


class ConnectedClient(AsyncClient, Protocol):
    """Interface of an asyncio producer or consumer."""

    @property
    def is_connected(self) -> bool:
        """True while a connection to a broker is open."""


C = TypeVar("C", bound=AsyncClient, covariant=True)
"""Class of the asyncio client. Covariant: a method of its base is one of each blocking client."""
K = TypeVar("K", bound=ConnectedClient, covariant=True)


class LoopThread:
    """An event loop in a daemon thread."""

    _shared: ClassVar["LoopThread | None"] = None
    _users_count: ClassVar[int] = 0
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="reput client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> "LoopThread":
        """Return the shared loop; the first caller creates it."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._users_count += 1
            return cls._shared

    def release(self) -> None:
        """Release the loop; the last user stops it."""
        with self._lock:
            if LoopThread._shared is not self:
                return
            LoopThread._users_count -= 1
            if LoopThread._users_count:
                return
            LoopThread._shared = None
        self.stop()

    @classmethod
    def forget(cls) -> None:
        """Forget the shared loop, in a forked child: it has the object without the thread."""
        cls._shared = None
        cls._users_count = 0
        cls._lock = threading.Lock()  # Another thread of the parent may have held it.

    @property
    def is_of_parent(self) -> bool:
        """True in a child of the process that started the loop."""
        return os.getpid() != self._process_id

    @property
    def is_current(self) -> bool:
        """True in the thread of the loop."""
        return threading.current_thread() is self._thread

    def check_process(self, what: str) -> None:
        """Check that this is the process of the loop; ``what`` is the client's name in errors.

        Raises:
            StartedElsewhere: This is a child of it.
        """
        if self.is_of_parent:
            started_in, used_in = f"process {self._process_id}", f"process {os.getpid()}"
            raise StartedElsewhere(what, started_in, used_in)

    def stop(self) -> None:
        """Stop the loop and cancel its tasks."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def wait_for(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop; return its result or raise its exception."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError(
                "a blocking client cannot wait in its own loop's thread; use reput.client there"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the caller no longer waits.
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


os.register_at_fork(after_in_child=LoopThread.forget)


class Facade(PlainWithOnly, Generic[C]):
    """Base of the blocking clients."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        self._is_ending = False

    def start(self) -> None:
        """Start the client; ``with`` calls it."""
        if self._thread is not None:
            self._thread.check_process(type(self).__name__)
            return
        self._thread = LoopThread.acquire()
        try:
            self._wait_for(self._client.start())
        except BaseException:
            thread, self._thread = self._thread, None
            thread.release()
            raise

    def close(self) -> None:
        """Close the client; leaving ``with`` calls it. In a forked child it does nothing."""
        self._end(self._client.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(lambda: self._client.__aexit__(kind, error, trace))

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)  # None if __init__ has failed
        if thread is not None and not thread.is_of_parent:
            text = f"{client_name(self, self._client)} was not closed; `with` closes it"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = self._thread
        if thread is None or self._is_ending:
            return
        if thread.is_of_parent:
            self._thread = None
            return
        self._is_ending = True
        try:
            thread.wait_for(end())  # Listeners and callbacks may still use the client.
        finally:
            self._thread = None
            self._is_ending = False
            thread.release()

    def _wait_for(self, coroutine: Coroutine[Any, Any, R]) -> R:
        if self._thread is None:
            coroutine.close()
            raise NotStarted(type(self).__name__)
        try:
            self._thread.check_process(type(self).__name__)
            if not self._thread.is_current:
                _warn_in_loop(type(self).__name__)
        except (StartedElsewhere, RuntimeWarning):  # Warnings may be errors.
            coroutine.close()
            raise
        return self._thread.wait_for(coroutine)


def _warn_in_loop(name: str) -> None:
    """Warn of a call in a thread that runs an event loop, at the line of the program."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    frame, level = sys._getframe(), 1
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    text = (
        f"a blocking {name} stops the event loop of this thread while it waits:"
        f" use reput.client.{name} with `await`, or call it by asyncio.to_thread"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def waiting(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[C], P], R]:
    """Return a method that runs a coroutine method of the asyncio client and waits."""

    @functools.wraps(method)
    def wait(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._wait_for(method(self._client, *args, **kwargs))

    return wait


def in_loop(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Facade[C], P], R]:
    """Return a method that runs a plain method of the asyncio client.

    It runs in the loop's thread once the client is started, before that in the caller's.
    """

    @functools.wraps(method)
    def run(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._thread is None:
            return method(self._client, *args, **kwargs)

        async def call() -> R:
            return method(self._client, *args, **kwargs)

        return self._wait_for(call())

    return run


def reading(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Facade[C], P], R]:
    """Return a method that calls a plain method of the asyncio client in the caller's thread."""

    @functools.wraps(method)
    def read(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._client, *args, **kwargs)

    return read


class ConnectedFacade(Facade[K]):
    """Base of the blocking producers and consumers."""

    @property
    def is_connected(self) -> bool:
        """True while a connection to a broker is open."""
        return self._client.is_connected


class Producer(ConnectedFacade[producer.Producer]):
    """``reput.client.Producer`` without ``await``."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            producer.Producer(
                group,
                namesrv=namesrv,
                on_connection=on_connection,
                config=config,
                client=client,
                clock=clock,
            )
        )

    send = waiting(producer.Producer.send)
    send_batch = waiting(producer.Producer.send_batch)
    send_many = waiting(producer.Producer.send_many)
    send_oneway = waiting(producer.Producer.send_oneway)
    recall = waiting(producer.Producer.recall)
    request = waiting(producer.Producer.request)
    reply = waiting(producer.Producer.reply)
    queues = waiting(producer.Producer.queues)
    is_ready = in_loop(producer.Producer.is_ready)
    ready = waiting(producer.Producer.ready)
    metrics = reading(producer.Producer.metrics)


class TransactionProducer(ConnectedFacade[transaction_producer.TransactionProducer]):
    """``reput.client.TransactionProducer`` without ``await``.

    A local transaction runs in the sending thread; ``check``, a plain function, runs in other
    threads.
    """

    def __init__(
        self,
        group: str,
        *,
        check: Check,
        topics: Collection[str] = (),
        namesrv: str | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            transaction_producer.TransactionProducer(
                group,
                check=check,
                topics=topics,
                namesrv=namesrv,
                on_connection=on_connection,
                config=config,
                client=client,
                clock=clock,
            )
        )

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message, SendResult], TransactionState],
        *,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send a message, run a local transaction, and commit or roll back the message."""
        half = self.send_half(message, timeout_ms=timeout_ms)
        state = TransactionState.ROLLBACK
        if half.status is SendStatus.SEND_OK:
            state = checked_state("execute", execute(message, half))
        return self.end(half, state, message=message)

    end = waiting(transaction_producer.TransactionProducer.end)
    send_half = waiting(transaction_producer.TransactionProducer.send_half)

    queues = waiting(transaction_producer.TransactionProducer.queues)
    is_ready = in_loop(transaction_producer.TransactionProducer.is_ready)
    ready = waiting(transaction_producer.TransactionProducer.ready)
    metrics = reading(transaction_producer.TransactionProducer.metrics)
    recall = waiting(transaction_producer.TransactionProducer.recall)
    reply = waiting(transaction_producer.TransactionProducer.reply)
    request = waiting(transaction_producer.TransactionProducer.request)
    send = waiting(transaction_producer.TransactionProducer.send)
    send_batch = waiting(transaction_producer.TransactionProducer.send_batch)
    send_many = waiting(transaction_producer.TransactionProducer.send_many)
    send_oneway = waiting(transaction_producer.TransactionProducer.send_oneway)


class Admin(Facade[AdminConnection]):
    """``reput.client.Admin`` without ``await``."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(admin.Admin(namesrv, client=client, clock=clock))

    acl = waiting(admin.Admin.acl)
    acls = waiting(admin.Admin.acls)
    add_write_perm = waiting(admin.Admin.add_write_perm)
    broker_config = waiting(admin.Admin.broker_config)
    broker_epochs = waiting(admin.Admin.broker_epochs)
    broker_stats = waiting(admin.Admin.broker_stats)
    broker_status = waiting(admin.Admin.broker_status)
    clean_expired_queues = waiting(admin.Admin.clean_expired_queues)
    clean_unused_topics = waiting(admin.Admin.clean_unused_topics)
    clone_offsets = waiting(admin.Admin.clone_offsets)
    clusters = waiting(admin.Admin.clusters)
    consume_directly = waiting(admin.Admin.consume_directly)
    consume_queue = waiting(admin.Admin.consume_queue)
    consume_stats = waiting(admin.Admin.consume_stats)
    consume_time_spans = waiting(admin.Admin.consume_time_spans)
    consumer_connection = waiting(admin.Admin.consumer_connection)
    consumer_offset = waiting(admin.Admin.consumer_offset)
    consumer_running_info = waiting(admin.Admin.consumer_running_info)
    create_acl = waiting(admin.Admin.create_acl)
    create_group = waiting(admin.Admin.create_group)
    create_topic = waiting(admin.Admin.create_topic)
    create_user = waiting(admin.Admin.create_user)
    delete_acl = waiting(admin.Admin.delete_acl)
    delete_expired_log = waiting(admin.Admin.delete_expired_log)
    delete_group = waiting(admin.Admin.delete_group)
    delete_kv = waiting(admin.Admin.delete_kv)
    delete_topic = waiting(admin.Admin.delete_topic)
    delete_user = waiting(admin.Admin.delete_user)
    earliest_store_time = waiting(admin.Admin.earliest_store_time)
    elect_master = waiting(admin.Admin.elect_master)
    forget_replicas = waiting(admin.Admin.forget_replicas)
    groups = waiting(admin.Admin.groups)
    groups_of_topic = waiting(admin.Admin.groups_of_topic)
    ha_status = waiting(admin.Admin.ha_status)
    kv = waiting(admin.Admin.kv)
    kv_of_namespace = waiting(admin.Admin.kv_of_namespace)
    leading_controller = waiting(admin.Admin.leading_controller)
    max_offset = waiting(admin.Admin.max_offset)
    message_by_offset_id = waiting(admin.Admin.message_by_offset_id)
    message_by_unique_key = waiting(admin.Admin.message_by_unique_key)
    message_trace = waiting(admin.Admin.message_trace)
    messages_by_key = waiting(admin.Admin.messages_by_key)
    messages_by_offset_id = waiting(admin.Admin.messages_by_offset_id)
    messages_by_unique_key = waiting(admin.Admin.messages_by_unique_key)
    min_offset = waiting(admin.Admin.min_offset)
    name_server_config = waiting(admin.Admin.name_server_config)
    producer_connection = waiting(admin.Admin.producer_connection)
    producers = waiting(admin.Admin.producers)
    put_kv = waiting(admin.Admin.put_kv)
    replica_groups = waiting(admin.Admin.replica_groups)
    request_modes = waiting(admin.Admin.request_modes)
    reset_offsets = waiting(admin.Admin.reset_offsets)
    resume_check = waiting(admin.Admin.resume_check)
    search_offset = waiting(admin.Admin.search_offset)
    set_request_mode = waiting(admin.Admin.set_request_mode)
    topic_configs = waiting(admin.Admin.topic_configs)
    topic_route = waiting(admin.Admin.topic_route)
    topic_status = waiting(admin.Admin.topic_status)
    topics = waiting(admin.Admin.topics)
    update_acl = waiting(admin.Admin.update_acl)
    update_broker_config = waiting(admin.Admin.update_broker_config)
    update_consumer_offset = waiting(admin.Admin.update_consumer_offset)
    update_name_server_config = waiting(admin.Admin.update_name_server_config)
    update_user = waiting(admin.Admin.update_user)
    user = waiting(admin.Admin.user)
    users = waiting(admin.Admin.users)
    wipe_write_perm = waiting(admin.Admin.wipe_write_perm)


class PushConsumer(ConnectedFacade[push_consumer.PushConsumer]):
    """``reput.client.PushConsumer`` without ``await``.

    A plain function as ``listener`` runs in threads and may itself use blocking clients.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        listener: Listener,
        orderly: bool = False,
        strategy: Strategy | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        close_timeout_ms: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            push_consumer.PushConsumer(
                group,
                namesrv=namesrv,
                listener=listener,
                orderly=orderly,
                strategy=strategy,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_connection=on_connection,
                config=config,
                client=client,
                close_timeout_ms=close_timeout_ms,
                clock=clock,
            )
        )

    pause = in_loop(push_consumer.PushConsumer.pause)
    is_ready = in_loop(push_consumer.PushConsumer.is_ready)
    ready = waiting(push_consumer.PushConsumer.ready)
    metrics = reading(push_consumer.PushConsumer.metrics)
    queues = in_loop(push_consumer.PushConsumer.queues)
    resume = in_loop(push_consumer.PushConsumer.resume)
    subscribe = waiting(push_consumer.PushConsumer.subscribe)
    subscribe_sql = waiting(push_consumer.PushConsumer.subscribe_sql)
    unsubscribe = waiting(push_consumer.PushConsumer.unsubscribe)


class PopConsumer(ConnectedFacade[pop_consumer.PopConsumer]):
    """``reput.client.PopConsumer`` without ``await``.

    A plain function as ``listener`` runs in threads and may itself use blocking clients.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        listener: Listener | None = None,
        orderly: bool = False,
        asks_brokers: bool = False,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        close_timeout_ms: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            pop_consumer.PopConsumer(
                group,
                namesrv=namesrv,
                listener=listener,
                orderly=orderly,
                asks_brokers=asks_brokers,
                on_connection=on_connection,
                config=config,
                client=client,
                close_timeout_ms=close_timeout_ms,
                clock=clock,
            )
        )

    ack = waiting(pop_consumer.PopConsumer.ack)
    is_ready = in_loop(pop_consumer.PopConsumer.is_ready)
    ready = waiting(pop_consumer.PopConsumer.ready)
    metrics = reading(pop_consumer.PopConsumer.metrics)
    extend = waiting(pop_consumer.PopConsumer.extend)
    nack = waiting(pop_consumer.PopConsumer.nack)
    pop = waiting(pop_consumer.PopConsumer.pop)
    queues = in_loop(pop_consumer.PopConsumer.queues)
    subscribe = waiting(pop_consumer.PopConsumer.subscribe)
    subscribe_sql = waiting(pop_consumer.PopConsumer.subscribe_sql)
    unsubscribe = waiting(pop_consumer.PopConsumer.unsubscribe)


class PullConsumer(ConnectedFacade[pull_consumer.PullConsumer]):
    """``reput.client.PullConsumer`` without ``await``.

    Iteration waits for each message.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        auto_commit: bool = True,
        strategy: Strategy | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            pull_consumer.PullConsumer(
                group,
                namesrv=namesrv,
                auto_commit=auto_commit,
                strategy=strategy,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_connection=on_connection,
                config=config,
                client=client,
                clock=clock,
            )
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return self._wait_for(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    assign = waiting(pull_consumer.PullConsumer.assign)
    is_ready = in_loop(pull_consumer.PullConsumer.is_ready)
    ready = waiting(pull_consumer.PullConsumer.ready)
    metrics = reading(pull_consumer.PullConsumer.metrics)
    assignment = in_loop(pull_consumer.PullConsumer.assignment)
    begin_offset = waiting(pull_consumer.PullConsumer.begin_offset)
    commit = waiting(pull_consumer.PullConsumer.commit)
    committed = waiting(pull_consumer.PullConsumer.committed)
    end_offset = waiting(pull_consumer.PullConsumer.end_offset)
    offset_at = waiting(pull_consumer.PullConsumer.offset_at)
    pause = in_loop(pull_consumer.PullConsumer.pause)
    poll = waiting(pull_consumer.PullConsumer.poll)
    position = in_loop(pull_consumer.PullConsumer.position)
    queues = waiting(pull_consumer.PullConsumer.queues)
    resume = in_loop(pull_consumer.PullConsumer.resume)
    seek = in_loop(pull_consumer.PullConsumer.seek)
    seek_to_begin = waiting(pull_consumer.PullConsumer.seek_to_begin)
    seek_to_end = waiting(pull_consumer.PullConsumer.seek_to_end)
    seek_to_time = waiting(pull_consumer.PullConsumer.seek_to_time)
    subscribe = waiting(pull_consumer.PullConsumer.subscribe)
    subscribe_sql = waiting(pull_consumer.PullConsumer.subscribe_sql)
    unsubscribe = waiting(pull_consumer.PullConsumer.unsubscribe)
