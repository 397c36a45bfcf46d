"""Transactional messages: consumers see them only after a successful local transaction.

    def save(message, half):  # a local transaction, which also writes half.message_id
        return TransactionState.COMMIT

    def was_saved(message):  # called later if the decision did not arrive
        return TransactionState.COMMIT if ... else TransactionState.ROLLBACK

    async with TransactionProducer("orders", namesrv="127.0.0.1:9876", check=was_saved) as producer:
        result = await producer.send_in_transaction(Message("Orders", b"one"), save)

The half message is stored, invisible to consumers; then the local transaction runs; then the broker
gets the decision. If it does not, because of a failure or a crash, the broker repeatedly queries
any producer of the group. If such a reply is lost, a message may be delivered twice, with one
``message_id``.

Source: rocketmq 4.9.7 ``DefaultMQProducerImpl.sendMessageInTransaction``,
``ClientRemotingProcessor.checkTransactionState``.
"""

import asyncio
import dataclasses
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import ParamSpec

import msgspec

from reput.client.config import ClientConfig, ProducerConfig
from reput.client.connection_events import ConnectionCallback
from reput.client.core import requests
from reput.client.hooks import SendOperation
from reput.client.instance import Answer
from reput.client.message import Message, ReceivedMessage, SendResult, SendStatus
from reput.client.producer import Producer
from reput.client.side_tasks import SideTasks
from reput.client.trace import keys_text
from reput.clock import Clock
from reput.errors import InvalidOption, RemotingError, ReputError
from reput.format import headers, message_id as ids, properties as props, sys_flag as flags
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import CheckTransactionStateHeader, EndTransactionHeader

CHECKS_AT_ONCE = 8
CHECKS_WAITING_MAX = 2_000
"""Maximum number of pending checks; brokers repeat the others."""

P = ParamSpec("P")

log = logging.getLogger(__name__)


class TransactionState(enum.Enum):
    """State of a local transaction."""

    COMMIT = "commit"
    """Committed: deliver the message."""
    ROLLBACK = "rollback"
    """Failed permanently: drop the message."""
    UNKNOWN = "unknown"
    """Unknown: check again later."""


class TransactionResult(msgspec.Struct, frozen=True):
    """Result of a transactional send."""

    half: SendResult
    """Result of storing the half message: ``queue`` is the final one, ``queue_offset`` that in the
    half topic.
    """
    state: TransactionState
    is_settled: bool
    """True if the broker has the decision; otherwise it checks later."""


LocalTransaction = Callable[[Message, SendResult], TransactionState | Awaitable[TransactionState]]
"""Function that runs the local transaction, given the message and the result of storing it."""
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Function that returns the state of a message's local transaction, for example by
``message_id``."""

_ENDS = {
    TransactionState.COMMIT: flags.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: flags.TRANSACTION_ROLLBACK,
}
_OPERATIONS = {
    TransactionState.COMMIT: SendOperation.COMMIT,
    TransactionState.ROLLBACK: SendOperation.ROLLBACK,
}
_TRACED = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",  # sic
}


class TransactionProducer(Producer):
    """A producer of transactional and other messages. Use it as ``async with``.

    Plain functions as ``check`` or local transaction run in threads, so that they may block.

    Args:
        group: Group of equal producers: a broker checks with any of them, also after a restart.
        check: Returns the state of a local transaction.
        topics: Topics whose brokers may check from the start; other brokers after the first send.
        namesrv: As for ``Producer``, like the following arguments.
        on_connection: Function that is called with each ``ConnectionEvent``.
        config: Settings of sends.
        client: Settings of the client.
        clock: The clock; tests pass their own.

    Raises:
        InvalidOption: An argument is not allowed.
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
            group,
            namesrv=namesrv,
            on_connection=on_connection,
            config=config,
            client=client,
            clock=clock,
        )
        self._check_state = check
        self._first_topics = [self._full_topic(topic) for topic in topics]
        self._checks = SideTasks()
        self._check_slots = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def start(self) -> None:
        """Start the producer, and register at the brokers of ``topics``."""
        await super().start()
        for topic in self._first_topics:
            try:
                await self._route(topic)
            except RemotingError as error:
                log.warning("no broker can ask about topic %s yet: %s", topic, error)

    async def close(self) -> None:
        """Unregister and stop; brokers check open transactions with other producers, or later."""
        checks = list(self._checks)
        for task in checks:
            task.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        await super().close()

    # --- sending ----------------------------------------------------------------

    async def send_in_transaction(
        self, message: Message, execute: LocalTransaction, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a message, run a local transaction, and commit or roll back the message.

        Exceptions of ``execute`` are raised and leave the transaction open: the broker checks.

        Args:
            message: The message, without delay. Its property ``CHECK_IMMUNITY_TIME_IN_SECONDS`` is
                the time before the first check.
            execute: The local transaction. If the message is stored less safely than configured
                (``SendStatus``), it does not run and the message is rolled back.
            timeout_ms: Timeout of all attempts to send, in ms; None: as configured.

        Raises:
            InvalidOption: The message is not allowed, or ``execute`` returned no state.
            NoRoute, SendFailed: As in ``send``; ``execute`` did not run.
        """
        half = await self.send_half(message, timeout_ms=timeout_ms)
        state = TransactionState.ROLLBACK
        if half.status is SendStatus.SEND_OK:
            state = checked_state("execute", await _called(execute, message, half))
        return await self.end(half, state, message=message)

    async def send_half(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """Send a half message, to be decided by ``end``.

        Arguments and errors are those of ``send_in_transaction``.
        """
        for name in ("delay_level", "delay_ms", "deliver_at_ms"):
            if value := getattr(message, name):
                raise InvalidOption(name, value, "0 in a transaction")
        marks = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: self.group}
        half = dataclasses.replace(message, properties={**message.properties, **marks})
        with self._observed(SendOperation.HALF, [half]) as call:
            outgoing = await self._outgoing(call.messages[0])
            outgoing.sys_flag |= flags.TRANSACTION_PREPARED
            call.result = await self._send(outgoing, None, timeout_ms)
        return call.result

    async def end(
        self, half: SendResult, state: TransactionState, *, message: Message | None = None
    ) -> TransactionResult:
        """Commit or roll back a message. Failures are logged.

        Args:
            half: Result of ``send_half``.
            state: The decision; ``UNKNOWN`` does nothing.
            message: The message, whose tags and keys are traced.
        """
        if state not in _ENDS and self._traces is None:
            return TransactionResult(half, state, False)
        is_settled = False
        route = await self._route(self._full_topic(half.queue.topic))
        address = route.master(half.queue.broker_name)
        if self._traces is not None:
            self._traces.transaction_ended(
                half.queue.topic,
                half.message_id,
                message.tags if message is not None else None,
                keys_text(message) if message is not None else None,
                broker_address=address,
                transaction_id=half.transaction_id or half.message_id,
                state=_TRACED[state],
            )
        if state in _ENDS:
            header = EndTransactionHeader(
                producer_group=self.group,
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=ids.decode_offset_id(half.offset_message_id).physical_offset,
                commit_or_rollback=_ENDS[state],
                from_transaction_check=False,
                msg_id=half.message_id,
                transaction_id=half.transaction_id or half.message_id,
            )
            messages = [] if message is None else [message]
            with self._observed(_OPERATIONS[state], messages, half=half):
                is_settled = await self._end_transaction(address, header)
        return TransactionResult(half, state, is_settled)

    async def _end_transaction(self, address: str, header: EndTransactionHeader) -> bool:
        # Java's client does not wait for the reply, which all brokers send if requested.
        request = requests.make(RequestCode.END_TRANSACTION, header)
        instance = self._joined()
        try:
            await instance.ask(address, request)
        except RemotingError as error:
            text = "%s does not hear what became of message %s, and asks later"
            instance.outages.warn(log, error, text, address, header.msg_id)
            return False
        return True

    # --- being asked ------------------------------------------------------------

    def _on_request(self, address: str, request: Command) -> Answer:
        """Handle checks of brokers, each in its own task."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._on_request(address, request)
        if len(list(self._checks)) >= CHECKS_WAITING_MAX:
            log.warning("%s asks about more messages than can be answered", address)
        else:
            self._checks.begin(self._answer(address, request))
        return None

    async def _answer(self, address: str, request: Command) -> None:
        async with self._check_slots:
            try:
                asked = headers.decode(CheckTransactionStateHeader, request.ext_fields)
                message = ReceivedMessage(bytes(request.body), self._broker_name(address))
                message.namespace = self._namespace
                state = checked_state("check", await _called(self._check_state, message))
            except ReputError as error:
                log.error("%s asks about a transaction: %s", address, error)
                return
            except Exception:  # the outermost edge of users' code
                log.exception("the check of a transaction that %s asks about failed", address)
                return
            if self._traces is not None:
                self._traces.transaction_ended(
                    message.topic,
                    message.message_id,
                    message.tags,
                    message.properties.get(props.KEYS),
                    broker_address=address,
                    transaction_id=asked.transaction_id,
                    state=_TRACED[state],
                    is_check=True,
                )
            if state not in _ENDS:
                return
            header = EndTransactionHeader(
                producer_group=self.group,
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                commit_or_rollback=_ENDS[state],
                from_transaction_check=True,
                msg_id=message.message_id,
                transaction_id=asked.transaction_id,
            )
            await self._end_transaction(address, header)

    def _broker_name(self, address: str) -> str:
        """Return the name of the broker at an address; "" if no route has it."""
        routes = map(self._joined().known_route, self._topics())
        names = (
            name
            for route in routes
            if route is not None
            for name, addresses in route.brokers.items()
            if address in addresses.values()
        )
        return next(names, "")


def checked_state(name: str, state: object) -> TransactionState:
    """Return a user function's result as a state. Raises ``InvalidOption``."""
    if not isinstance(state, TransactionState):
        raise InvalidOption(name, state, "a function that returns a TransactionState")
    return state


async def _called(
    function: Callable[P, TransactionState | Awaitable[TransactionState]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> TransactionState:
    """Call a user's function; plain functions run in a thread."""
    call = getattr(function, "__call__", function)  # noqa: B004 - an object's own method
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        answer = function(*args, **kwargs)
    else:
        answer = await asyncio.to_thread(function, *args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer
