"""The Telemetry stream of a client: its settings, and what brokers ask it.

Source: rocketmq-proxy 5.5.0 ``ClientActivity``, ``GrpcClientChannel``.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from reput.broker.access.rules import AccessRefused
from reput.errors import CallFailed, CorruptRecord, InvalidHeader, ReputError
from reput.format import bodies, command as commands, headers, message as records
from reput.format.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, ProcessQueueInfos
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CheckTransactionStateHeader,
    ConsumerRunningInfoHeader,
    NotifyUnsubscribeLiteHeader,
)
from reput.grpc import conversion, settings, statuses
from reput.grpc.caller import Caller
from reput.grpc.clients import Client
from reput.grpc.http2.grpc import Call, SentMessage
from reput.grpc.http2.status import Status
from reput.grpc.statuses import StatusError
from reput.grpc.transactions import Half, Transactions
from reput.grpc.wire import grpc_messages as tables, protobuf
from reput.grpc.wire.grpc_messages import Code
from reput.remoting.channel import Channel

ANSWER_S = 5.0
"""Time that a client has to answer a broker's request, in seconds."""
_WAITING_MAX = 1_000
"""Requests of brokers that wait for answers of clients."""

_log = logging.getLogger(__name__)

ReadCommand = Callable[[Caller, SentMessage], Awaitable[dict[str, Any]]]
"""Returns the command in a message of a client, after checking its permission."""
SetSettings = Callable[[Caller, dict[str, Any], "Stream"], Awaitable[dict[str, Any]]]
"""Accepts the settings of a client; returns the settings to send back."""


class Stream:
    """The telemetry stream of a client: settings and commands in both directions.

    Idle clients keep theirs open, so that it must take little memory.

    Args:
        call: The call.
        caller: Its client.
        read: Reads commands.
        set_settings: Takes settings.
        answers: Takes the answers of the client to requests of brokers.
        ended: Called with the client when its stream has ended, unless it has another one.
    """

    __slots__ = (
        "_answers",
        "_call",
        "_caller",
        "_ended",
        "_is_half_closed",
        "_read",
        "_set_settings",
        "_work",
        "client",
    )

    def __init__(
        self,
        call: Call,
        caller: Caller,
        read: ReadCommand,
        set_settings: SetSettings,
        answers: "Answers",
        ended: Callable[[Client], None],
    ) -> None:
        self._call = call
        self._caller = caller
        self._read = read
        self._set_settings = set_settings
        self._answers = answers
        self._ended = ended
        self.client: Client | None = None
        """The client, once it has sent settings."""
        self._work: asyncio.Task[None] | None = None
        self._is_half_closed = False
        call.on_message = self._on_message
        call.on_cancel = self._end
        call.on_half_close = self._on_half_close
        call.send()  # Rust's SDK sends nothing before it has the headers

    def send(self, command: dict[str, Any]) -> None:
        """Send a TelemetryCommand, unless the client does not read."""
        if self._call.is_writable:
            self._call.send(protobuf.encode(tables.TELEMETRY_COMMAND, command))

    def _on_message(self) -> None:
        if self._work is None:
            self._work = asyncio.ensure_future(self._take_commands())

    async def _take_commands(self) -> None:
        """Process the commands of the client, in order."""
        try:
            while self._call.inbox and not self._call.has_ended:
                await self._take(self._call.inbox.popleft())
        finally:
            self._work = None
        if self._is_half_closed and not self._call.has_ended:
            self._finish()

    async def _take(self, sent: SentMessage) -> None:
        try:
            command = await self._read(self._caller, sent)
        except AccessRefused as error:
            self.send({"status": statuses.of_error(error)})  # as Java: the stream stays
            return
        except CallFailed as error:
            self._fail(Status(error.status), str(error))
            return
        except StatusError as error:
            self._fail(Status.INTERNAL, str(error))
            return
        except ReputError as error:
            self._fail(Status.INTERNAL, str(error))
            return
        if "settings" in command:
            await self._take_settings(command["settings"])
        elif "thread_stack_trace" in command or "verify_message_result" in command:
            self._answers.take(command)
        self._call.forget_content()
        if self._call.has_ended:
            self._end()

    async def _take_settings(self, sent: dict[str, Any]) -> None:
        try:
            answer = await self._set_settings(self._caller, sent, self)
        except StatusError as error:
            is_mistake = 40_000 <= error.code < 50_000
            status = Status.INVALID_ARGUMENT if is_mistake else Status.INTERNAL
            self._fail(status, f"process client telemetryCommand failed. {error.message}")
        except AccessRefused as error:
            self.send({"status": statuses.of_error(error)})  # as Java: the stream stays
        except ReputError as error:
            self._fail(Status.INTERNAL, f"process client telemetryCommand failed. {error}")
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            _log.exception("settings of %s", self._caller.client_id)
            self._fail(Status.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            self.send({"status": statuses.OK, "settings": answer})

    def _fail(self, status: Status, reason: str) -> None:
        self._call.fail(status, reason)
        self._end()

    def _end(self) -> None:
        if self.client is not None and self.client.telemetry is self:
            self.client.telemetry = None
            self._ended(self.client)

    def _on_half_close(self) -> None:
        self._is_half_closed = True
        if self._work is None:
            self._finish()

    def _finish(self) -> None:
        self._call.finish()
        self._end()


class Answers:
    """Requests of brokers to clients that wait for answers, by their nonces.

    Args:
        transactions: The open transactions; transactions that brokers ask for are added.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._nonces = itertools.count(1)
        self._waiting: dict[str, tuple[Channel, Command, asyncio.TimerHandle]] = {}

    def ask(self, client: Client, channel: Channel, request: Command) -> None:
        """Pass a request of a broker to a client, or answer it for the client.

        Args:
            client: The client.
            channel: Its connection to the broker.
            request: The request.
        """
        try:
            if request.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._ask_for_decision(client, channel, request)
            elif request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                message = records.decode(request.body, check_crc=False)
                self._send(
                    client,
                    channel,
                    request,
                    "verify_message_command",
                    {"message": conversion.incoming(message)},
                )
            elif request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                header = headers.decode(ConsumerRunningInfoHeader, request.ext_fields)
                if header.jstack_enable:
                    self._send(client, channel, request, "print_thread_stack_trace_command", {})
                else:
                    channel.answer(request, _running_info(client, request, None))
            elif request.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
                notice = headers.decode(NotifyUnsubscribeLiteHeader, request.ext_fields)
                if client.telemetry is not None:
                    client.telemetry.send(
                        {"notify_unsubscribe_lite_command": {"lite_topic": notice.lite_topic}}
                    )
            elif not request.is_oneway:
                text = f"a client of gRPC cannot answer request {request.code}"
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                channel.answer(request, commands.reply(request, code, text))
        except (CorruptRecord, InvalidHeader) as error:
            _log.error("%r cannot be asked %d: %s", client, request.code, error)
            if not request.is_oneway:
                reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, str(error))
                channel.answer(request, reply)

    def _ask_for_decision(self, client: Client, channel: Channel, request: Command) -> None:
        """Ask a producer whether to commit a half message."""
        if client.telemetry is None:
            return  # the broker asks again
        header = headers.decode(CheckTransactionStateHeader, request.ext_fields)
        message = conversion.incoming(records.decode(request.body, check_crc=False))
        transaction_id = message["system_properties"]["message_id"]
        half = Half(
            client.broker_of(channel), header.tran_state_table_offset, header.commit_log_offset
        )
        self._transactions.add(message["topic"]["name"], transaction_id, half)
        command = {"message": message, "transaction_id": transaction_id}
        client.telemetry.send({"recover_orphaned_transaction_command": command})

    def _send(
        self, client: Client, channel: Channel, request: Command, name: str, command: dict[str, Any]
    ) -> None:
        if client.telemetry is None or len(self._waiting) >= _WAITING_MAX:
            text = f"the client {client.client_id} has no Telemetry stream, or too many wait"
            channel.answer(request, commands.reply(request, ResponseCode.SYSTEM_ERROR, text))
            return
        nonce = str(next(self._nonces))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ANSWER_S, self._waiting.pop, nonce, None)
        self._waiting[nonce] = channel, commands.envelope(request), timer
        client.telemetry.send({name: {"nonce": nonce, **command}})

    def take(self, command: dict[str, Any]) -> None:
        """Pass the answer of a client to the requesting broker; late answers are ignored."""
        trace = command.get("thread_stack_trace")
        result = trace or command["verify_message_result"]
        waiting = self._waiting.pop(result.get("nonce", ""), None)
        if waiting is None:
            return
        channel, request, timer = waiting
        timer.cancel()
        if trace is not None:
            info = bodies.encode(_info({}, trace.get("thread_stack_trace", "")))
            channel.answer(request, commands.reply(request, body=info))
            return
        status = command.get("status", {})
        is_consumed = status.get("code") == Code.OK
        answer = ConsumeDirectlyResult(
            auto_commit=True,
            consume_result="CR_SUCCESS" if is_consumed else "CR_LATER",
            order=False,
            remark=status.get("message"),
            spent_time_mills=0,
        )
        channel.answer(request, commands.reply(request, body=bodies.encode(answer)))


def _running_info(client: Client, request: Command, jstack: str | None) -> Command:
    info = _info(client.settings or {}, jstack)
    return commands.reply(request, body=bodies.encode(info))


def _info(known: dict[str, Any], jstack: str | None) -> ConsumerRunningInfo:
    subscriptions = list(settings.subscriptions(known, 0))
    return ConsumerRunningInfo(
        jstack=jstack,
        mq_table=ProcessQueueInfos({}),
        properties={"PROP_CLIENT_VERSION": "gRPC", "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        status_table={},
        subscription_set=subscriptions,
    )
