"""Commands of the broker's scripts: clients of a broker in this process, without sockets.

The broker has the address 192.0.2.1:10911, and its loops do not run: ``advance`` and ``tick`` run
their steps. Each script runs with the fast path and without.

The script sets the time: ``@5s`` in an argument is five seconds after its start, and output has
times as ``@5000ms``. Other frames that clients receive follow the reply to a command as
``NAME <- ...``; warnings and errors of the log follow as ``warning: ...``.
"""

import base64
import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from reput import config as options
from reput.broker.port import Port
from reput.broker.server import Broker
from reput.broker.settings.config import load
from reput.clock import ManualClock
from reput.errors import ReputError
from reput.format import (
    batch,
    headers,
    java,
    message as record,
    names,
    pop_codec,
    properties as props,
)
from reput.format.batch import InnerMessage
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.format.headers import PullMessageHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.format.message_id import decode_offset_id
from reput.remoting.channel import Channel
from reput.remoting.time_slices import run_whole
from scripts.runner import Milliseconds
from scripts.wire import (
    START_MS,
    Clients,
    Limits,
    Logs,
    ScriptServer,
    duration_ms,
    messages_in,
    shown_body,
    shown_message,
    shown_reply,
    value_of,
    with_times,
)

NAME = "broker-a"
PORT = 10911
INVISIBLE_MS = 60_000
_SEND_FIELDS = SendMessageHeader.__struct_encode_fields__
_PULL_FIELDS = PullMessageHeader.__struct_encode_fields__
_SETTINGS = {
    "brokerName": NAME,
    "brokerIP1": "192.0.2.1",
    "bindAddress": "127.0.0.1",
    "listenPort": str(PORT),
    "haListenPort": "0",
    "mappedFileSizeCommitLog": "1048576",
    "maxMessageSize": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "messageDelayLevel": "1s 5s 10s",
    "enablePropertyFilter": "true",
}


class ScriptBroker(Broker):
    """A broker that does not listen."""

    async def _listen_on(self, port: int, *, is_fast: bool) -> int:
        service = Port(self.parts, self.frontend, is_fast=is_fast)
        self._servers.append(ScriptServer(service, buffer=self._buffer, state=self.serving))
        return port


_BUILT_IN = frozenset(
    [
        "BenchmarkTest",
        "DefaultCluster",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "DefaultCluster_REPLY_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "broker-a",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ]
)


def _shown_pull(reply: Command) -> list[str]:
    fields = reply.ext_fields or {}
    usual = ["suggestWhichBrokerId"] if fields.get("suggestWhichBrokerId") == "0" else []
    return shown_reply(reply, *usual)


def _tags(text: str) -> list[str]:
    return [] if text == "*" else [tag.strip() for tag in text.split("||")]


class Popped:
    """A popped message and its handle."""

    def __init__(self, message: StoredMessage, group: str, topic: str, handle: str) -> None:
        self.message = message
        self.group = group
        self.topic = topic
        self.handle = handle

    @property
    def words(self) -> list[str]:
        return self.handle.split(" ")


class Commands:
    """A broker and its clients.

    Args:
        folder: The folder of the store and of broker.conf.
        subject: Whether the broker has its fast path.
    """

    ERRORS = (ReputError,)
    SUBJECTS = ("fast", "plain")

    def __init__(self, folder: Path, subject: str) -> None:
        self._folder = folder
        self._has_fast_path = subject == "fast"
        self._clock = ManualClock(START_MS)
        self._broker: ScriptBroker | None = None
        self._built_in_groups: set[str] = set()
        self._popped: list[Popped] = []
        self._halves: dict[str, list[tuple[int, int]]] = {}
        """Body of a half message -> queue offset and physical offset of each copy."""
        self._shown_offset = 0
        self._clients = Clients(self._connect, self._step_store)
        self._clients.on_request = self._note_asked
        self._logs = Logs(self._clients.printed, str(folder))
        logging.getLogger("reput").addHandler(self._logs)
        # Queues are drawn at random: here always the first one.
        self._chance = mock.patch.multiple(random, random=lambda: 0.0, randrange=lambda *_: 0)
        self._chance.start()
        self._limits = Limits()

    async def close(self) -> None:
        try:
            if self._broker is not None:
                await self.stop()
        finally:
            self._chance.stop()
            self._limits.restore()
            logging.getLogger("reput").removeHandler(self._logs)

    # The broker ---------------------------------------------------------------------------------

    async def open(self, **settings: str) -> list[str]:
        """Start the broker. Settings have Java's names, and stay in broker.conf."""
        conf = self._folder / "broker.conf"
        known = _SETTINGS | {"storePathRootDir": str(self._folder / "store")}
        text = (
            conf.read_text() if conf.exists() else "".join(f"{k}={v}\n" for k, v in known.items())
        )
        conf.write_text(options.replace_properties(text, settings))
        explicit = {"reput_fast_path": self._has_fast_path}
        loaded = load(conf, environment={}, explicit=explicit)
        self._broker = ScriptBroker(
            loaded.broker, loaded.store, clock=self._clock, config_path=str(conf)
        )
        with mock.patch("reput.store.files.disk.Disk.usage", return_value=0.5):
            await self._broker._open()
        self._broker.serving.slices.slice_s = 3600.0  # interrupt no request
        if not self._built_in_groups:
            self._built_in_groups = set(self._broker.parts.subscription_groups.all())
        await self._clients.settle()
        return [*map(str, self._broker.parts.start_warnings), *self._received()]

    async def stop(self) -> list[str]:
        """Stop as a broker does: save everything, and answer held requests."""
        assert self._broker is not None
        broker, self._broker = self._broker, None
        await broker.stop()
        self._clients.forget_all()
        return self._received()

    async def crash(self) -> None:
        """Stop like a killed process: written data survives."""
        assert self._broker is not None
        broker, self._broker = self._broker, None
        broker.parts.pull_subscriptions.close()
        broker.store.abandon()
        await broker.parts.replication.stop()
        await broker.parts.table_writes.stop()
        await broker.loops.stop()
        self._clients.forget_all()

    async def restart(self, **settings: str) -> list[str]:
        """Stop and open."""
        return [*await self.stop(), *await self.open(**settings)]

    async def advance(self, duration: str) -> list[str]:
        """Advance the clock, then let the loops do all due work."""
        self._clock.advance(duration_ms(duration))
        return await self.tick()

    async def advance_stopped(self, duration: str) -> None:
        """Advance the clock while no broker runs."""
        assert self._broker is None
        self._clock.advance(duration_ms(duration))

    async def set_clock(self, time: str) -> list[str]:
        """Set the time of day, as an operator does; ``@-1h`` is an hour before the start."""
        self._clock.set(START_MS + duration_ms(time[1:]))
        return await self.tick()

    async def tick(self) -> list[str]:
        """Let the loops do all due work."""
        broker = self._running
        parts, clock = broker.parts, self._clock
        self._step_store()
        for _ in range(10_000):
            now_ms = clock.now_ms()
            is_busy = False
            if broker.identity.is_master:
                is_busy = parts.delayed.step(now_ms)
                is_busy = parts.timers.step(now_ms) or is_busy
                is_busy = parts.transactions.step(now_ms) or is_busy
                is_busy = broker.loops.step_pops(now_ms) or is_busy
            parts.store.notify()
            self._step_store()
            if not is_busy:
                break
        run_whole(broker.loops.expire_held())
        parts.members.expire()
        await self._clients.settle()
        return self._received()

    async def sync(self) -> list[str]:
        """Make the log durable, and let the loops record that."""
        self._running.store.sync()
        return await self.tick()

    async def sample(self, duration: str) -> None:
        """Advance the clock, and sample the counters once, as the loop of tables does."""
        self._clock.advance(duration_ms(duration))
        run_whole(self._running.parts.deliveries.stats.sample(self._clock.now_ms()))

    def limit(self, name: str, maximum: int) -> None:
        """Change a limit that has no setting."""
        self._limits.change(name, maximum)

    def refuse(self, reason: str = "no room") -> None:
        """Let the store refuse all messages."""
        self._running.store.watch.refusal = reason
        self._step_store()

    def accept(self) -> None:
        """End ``refuse``."""
        self._running.store.watch.refusal = ""
        self._step_store()

    def damage(self, physical_offset: int) -> None:
        """Overwrite the magic of a record."""
        if self._broker is not None:
            self._broker.store.sync()
        with (self._folder / "store" / "commitlog" / ("0" * 20)).open("r+b") as log:
            log.seek(physical_offset + 4)
            log.write(b"bad!")

    # Requests -----------------------------------------------------------------------------------

    async def ask(
        self,
        code: str,
        body: bytes = b"",
        client: str = "c",
        only: str | None = None,
        later: bool = False,
        oneway: bool = False,
        serialization: str = "JSON",
        version: int = 407,
        language: str = "JAVA",
        **fields: str,
    ) -> list[str]:
        """Send a request by its code or the code's name; print the reply.

        ``only`` lists the members of a JSON body to print: ``table/T,version``.
        """
        number = int(code) if code.isdecimal() else RequestCode[code]
        request = Command(
            number, ext_fields={name: value_of(text) for name, text in fields.items()}, body=body,
            flag=IS_ONEWAY * oneway, serialization=Serialization[serialization], version=version,
            language=LanguageCode[language],
        )  # fmt: skip
        return await self._ask(
            client, request, lambda reply: shown_reply(reply, only=only), is_later=later
        )

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        queue: int = 0,
        client: str = "c",
        code: str = "SEND_MESSAGE_V2",
        serialization: str = "JSON",
        oneway: bool = False,
        later: bool = False,
        version: int = 407,
        **fields: str,
    ) -> list[str]:
        """Send a message. Fields of the header have Java's names; all others are properties."""
        known = {
            "producerGroup": "producers",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue),
            "sysFlag": "0",
            "bornTimestamp": str(self._clock.now_ms()),
            "flag": "0",
        }
        known |= {name: value_of(text) for name, text in fields.items() if name in _SEND_FIELDS}
        properties = {n: value_of(text) for n, text in fields.items() if n not in _SEND_FIELDS}
        if properties:
            known["properties"] = props.encode(properties).decode()
        number = RequestCode[code]
        if number not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
            known = {headers._V2_LETTERS[name]: text for name, text in known.items()}
        request = Command(
            number, ext_fields=known, body=body, serialization=Serialization[serialization],
            flag=IS_ONEWAY * oneway, version=version,
        )  # fmt: skip
        is_half = properties.get("TRAN_MSG") == "true"
        return await self._ask(
            client,
            request,
            lambda reply: self._shown_send(reply, body.decode() if is_half else ""),
            is_later=later,
        )

    async def send_batch(
        self, topic: str, *bodies: str, queue: int = 0, key: str = "", **fields: str
    ) -> list[str]:
        """Send a batch; each message has ``key`` and its number as UNIQ_KEY."""
        inner = [
            InnerMessage(
                0, body.encode(), props.encode({"UNIQ_KEY": f"{key}{number}"} if key else {})
            )
            for number, body in enumerate(bodies)
        ]
        fields = {"batch": "true"} | fields
        return await self.send(
            topic, batch.encode(inner), queue, code="SEND_BATCH_MESSAGE", **fields
        )

    def _shown_send(self, reply: Command, half: str) -> list[str]:
        fields = dict(reply.ext_fields or {})
        if "msgId" in fields:
            places = (
                [decode_offset_id(msg_id).physical_offset for msg_id in fields["msgId"].split(",")]
                if len(fields["msgId"]) >= 32
                else [fields["msgId"]]
            )
            if half:
                self._halves[half] = [(int(fields["queueOffset"]), int(places[0]))]
            fields = {"at": ",".join(map(str, places))} | fields
        reply.ext_fields = fields
        hidden = [
            name
            for name, usual in (("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true"))
            if fields.get(name) == usual
        ]
        return shown_reply(reply, "msgId", *hidden)

    async def pull(
        self,
        topic: str,
        queue: int = 0,
        offset: int = 0,
        wait: Milliseconds | None = None,
        client: str = "c",
        code: str = "PULL_MESSAGE",
        **fields: str,
    ) -> list[str]:
        """Pull messages. With ``wait`` the broker may hold the request."""
        known = {
            "consumerGroup": "consumers",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4" if wait is None else "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait or 0),
            "subscription": "*",
            "subVersion": "0",
        }
        assert fields.keys() <= set(_PULL_FIELDS), fields
        request = Command(RequestCode[code], ext_fields=known | fields)
        return await self._ask(client, request, _shown_pull, is_later=wait is not None)

    async def send_back(
        self, physical_offset: int, group: str = "G", version: int = 407, **fields: str
    ) -> list[str]:
        """Send a message back: 36."""
        known = {"offset": str(physical_offset), "group": group, "delayLevel": "0"} | fields
        return await self.ask("CONSUMER_SEND_MSG_BACK", version=version, **known)

    async def commit(
        self, place: str, group: str, consumer_offset: str, client: str = "c"
    ) -> list[str]:
        """Commit the consumer offset of a group: 15."""
        topic, queue_id = place.rsplit("/", 1)
        return await self.ask(
            "UPDATE_CONSUMER_OFFSET", client=client, consumerGroup=group, topic=topic,
            queueId=queue_id, commitOffset=consumer_offset,
        )  # fmt: skip

    async def heartbeat(
        self,
        group: str = "",
        *topics: str,
        producers: str = "",
        client_id: str = "",
        model: str = "CLUSTERING",
        client: str = "c",
        sql: str = "",
        tags: str = "*",
        subVersion: int = 1,
        version: int = 407,
        language: str = "JAVA",
        consumeType: str = "CONSUME_PASSIVELY",
    ) -> list[str]:
        """Send a heartbeat of a consumer group, of producer groups, or of both."""
        subscriptions = [
            {"topic": name, "subString": sql or tags, "subVersion": subVersion,
             "expressionType": "SQL92" if sql else "TAG",
             "tagsSet": _tags(tags), "codeSet": [java.string_hash(name) for name in _tags(tags)]}
            for name in topics
        ]  # fmt: skip
        consumers = [
            {"groupName": name, "consumeType": consumeType, "messageModel": model,
             "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions}
            for name in group.split(",") if name
        ]  # fmt: skip
        body = {
            "clientID": client_id or client,
            "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": name} for name in producers.split(",") if name],
        }
        return await self.ask(
            "HEART_BEAT", json.dumps(body).encode(), client, version=version, language=language
        )

    async def connect(self, client: str, address: str) -> None:
        """Connect a client from an address."""
        self._clients.named(client, address)

    async def disconnect(self, client: str = "c") -> list[str]:
        """Close the connection of a client."""
        self._clients.close(client)
        await self._clients.settle()
        return self._received()

    async def answer(
        self, client: str, code: str = "SUCCESS", body: bytes = b"", remark: str | None = None,
        **fields: str,
    ) -> None:  # fmt: skip
        """Set what a client answers to the requests of the broker."""
        number = ResponseCode[code]
        self._clients.named(client).answer = Command(
            number, remark=remark, ext_fields=fields or None, body=body
        )

    async def _ask(
        self, client: str, request: Command, show: Any, *, is_later: bool = False
    ) -> list[str]:
        assert self._broker is not None, "the broker is not open"
        connection = self._clients.named(client)
        lines = await self._clients.ask(connection, request, show, is_later=is_later)
        lines = [with_times(line).replace(str(self._folder), "ROOT") for line in lines]
        return [*lines, *self._received()]

    # Transactions -------------------------------------------------------------------------------

    async def half(self, body: str, topic: str = "T", queue: int = 0, **fields: str) -> list[str]:
        """Send a half message."""
        known = {"TRAN_MSG": "true", "PGROUP": "producers", "sysFlag": "4"} | fields
        return await self.send(topic, body.encode(), queue, **known)

    async def end(
        self,
        body: str,
        state: str,
        copy: int = 0,
        later: bool = False,
        oneway: bool = False,
        **fields: str,
    ) -> list[str]:
        """End the transaction of a half message: commit, rollback, or a number.

        ``copy`` is the number of the copy to name: 0 for the message that was sent, -1 for the
        latest that a producer was asked about.
        """
        queue_offset, physical_offset = self._halves[body][copy]
        number = {"commit": "8", "rollback": "12", "unknown": "0"}.get(state, state)
        known = {
            "producerGroup": "producers",
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(physical_offset),
            "commitOrRollback": number,
        }
        return await self.ask("END_TRANSACTION", later=later, oneway=oneway, **(known | fields))

    # Pop ----------------------------------------------------------------------------------------

    async def pop(
        self,
        topic: str = "T",
        group: str = "G",
        queue: int = -1,
        count: int = 32,
        invisible: Milliseconds | None = None,
        wait: Milliseconds | None = None,
        client: str = "c",
        **fields: str,
    ) -> list[str]:
        """Pop messages; each has a number, by which ``ack`` and ``change`` name it."""
        known = {
            "consumerGroup": group, "topic": topic, "queueId": str(queue), "maxMsgNums": str(count),
            "invisibleTime": str(INVISIBLE_MS if invisible is None else invisible),
            "pollTime": str(wait or 0), "bornTime": "0", "initMode": "0", "expType": "TAG",
            "exp": "*",
        }  # fmt: skip
        known |= {name: value_of(text) for name, text in fields.items()}
        request = Command(RequestCode.POP_MESSAGE, ext_fields=known)
        return await self._ask(
            client,
            request,
            lambda reply: self._shown_pop(reply, group, topic),
            is_later=wait is not None,
        )

    def _shown_pop(self, reply: Command, group: str, topic: str) -> list[str]:
        fields = reply.ext_fields or {}
        messages = messages_in(reply.body)
        starts = {}
        for info in (fields.get("startOffsetInfo") or "").split(";"):
            if info:
                kind, queue_id, start = info.split(" ")
                starts[kind, int(queue_id)] = start
        light = iter((fields.get("msgOffsetInfo") or "").rpartition(" ")[2].split(","))
        reply.body = b""
        lines = shown_reply(reply)
        for message in messages:
            handle = message.properties.get(props.POP_CHECKPOINT)
            if handle is None:
                queue_id, queue_offset = message.queue_id, str(message.queue_offset)
                if names.is_light(topic):  # its records have their place in another queue
                    queue_id, queue_offset = 0, next(light)
                handle = " ".join(
                    (starts["0", queue_id], fields["popTime"], fields["invisibleTime"],
                     fields["reviveQid"], "0", NAME, str(queue_id), queue_offset)
                )  # fmt: skip
            kind = handle.split(" ")[4]
            real = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}
            self._popped.append(Popped(message, group, real[kind], handle))
            lines.append(f"#{len(self._popped)} {shown_message(message)}")
        return lines

    async def ack(self, number: int, **fields: str) -> list[str]:
        """Acknowledge a popped message."""
        popped = self._popped[number - 1]
        known = {
            "consumerGroup": popped.group, "topic": popped.topic, "queueId": popped.words[6],
            "extraInfo": popped.handle, "offset": popped.words[7],
        }  # fmt: skip
        return await self.ask("ACK_MESSAGE", **(known | fields))

    async def ack_batch(self, *numbers: int) -> list[str]:
        """Acknowledge popped messages with one request."""
        by_checkpoint: dict[tuple[str, ...], list[Popped]] = {}
        for number in numbers:
            popped = self._popped[number - 1]
            by_checkpoint.setdefault((popped.group, *popped.words[:5], popped.words[6]), []).append(
                popped
            )
        acks = []
        for (
            group,
            start,
            pop_ms,
            invisible_ms,
            revive,
            kind,
            queue_id,
        ), messages in by_checkpoint.items():
            bits = sum(1 << int(popped.words[7]) - int(start) for popped in messages)
            bit_set = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            topic = (
                messages[0].topic.removeprefix(f"%RETRY%{group}_")
                if kind == "1"
                else messages[0].topic
            )
            acks.append(
                {
                    "c": group, "t": topic, "r": kind, "so": int(start), "q": int(queue_id),
                    "rq": int(revive), "pt": int(pop_ms), "it": int(invisible_ms),
                    "b": base64.b64encode(bit_set).decode(),
                }
            )  # fmt: skip
        body = json.dumps({"brokerName": NAME, "acks": acks}).encode()
        return await self.ask("BATCH_ACK_MESSAGE", body)

    async def change(self, number: int, invisible: Milliseconds, **fields: str) -> list[str]:
        """Change the invisible time of a popped message; it gets a new number."""
        popped = self._popped[number - 1]
        known = {
            "consumerGroup": popped.group, "topic": popped.topic, "queueId": popped.words[6],
            "extraInfo": popped.handle, "offset": popped.words[7], "invisibleTime": str(invisible),
        } | fields  # fmt: skip
        request = Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=known)

        def show(reply: Command) -> list[str]:
            lines = shown_reply(reply)
            new = reply.ext_fields or {}
            if reply.code == ResponseCode.SUCCESS:
                words = popped.words
                if int(new["reviveQid"]) != pop_codec.ORDERED_REVIVE_QUEUE:
                    words[0] = words[7]
                words[1:4] = new["popTime"], new["invisibleTime"], new["reviveQid"]
                handle = " ".join(words)
                self._popped.append(Popped(popped.message, popped.group, popped.topic, handle))
                lines[0] += f" #{len(self._popped)}"
            return lines

        return await self._ask("c", request, show)

    # Output -------------------------------------------------------------------------------------

    async def log(self) -> list[str]:
        """Print the records that were stored since the last call."""
        store = self._running.store
        lines = []
        while self._shown_offset < store.max_physical_offset:
            data = store.record_at(self._shown_offset)
            if data is None:
                size = store.config.mapped_file_size_commit_log
                self._shown_offset += size - self._shown_offset % size
                continue
            lines.append(with_times(shown_message(record.decode(data), has_place=True)))
            self._shown_offset += len(data)
        return lines

    async def bytes(self, physical_offset: int) -> list[str]:
        """Print the bytes of a record."""
        data = self._running.store.record_at(physical_offset)
        assert data is not None
        return [data[position : position + 32].hex(" ") for position in range(0, len(data), 32)]

    async def dump(self, topic: str, queue: int = 0) -> list[str]:
        """Print the messages of a queue."""
        self._step_store()
        messages: list[StoredMessage] = []
        offset = self._running.store.min_offset(topic, queue)
        while records := self._running.store.get(topic, queue, offset, 32).records:
            messages += [record.decode(bytes(message)) for message in records]
            offset = messages[-1].queue_offset + 1
        return [with_times(shown_message(message)) for message in messages] or ["(empty)"]

    async def queues(self) -> list[str]:
        """Print the first and the last offset of each queue."""
        self._step_store()
        return sorted(
            f"{queue.topic}/{queue.queue_id} {queue.min_offset}..{queue.max_offset}"
            for queue in self._running.store.queues
        )

    async def offsets(self) -> list[str]:
        """Print the consumer offsets."""
        return sorted(
            f"{offset.group} {offset.topic}/{offset.queue_id} {offset.consumer_offset}"
            for offset in self._running.parts.deliveries.consumer_offsets.all()
        )

    async def topics(self) -> list[str]:
        """Print the topics that are not built in: read and write queues, permission, flags."""
        lines = []
        for name, topic in sorted(self._running.parts.topics.all().items()):
            if name in _BUILT_IN:
                continue
            words = [name, f"read={topic.read_queue_count}", f"write={topic.write_queue_count}"]
            words += [f"perm={topic.perm}"]
            words += [f"sysFlag={topic.sys_flag}"] if topic.sys_flag else []
            words += ["order"] if topic.order else []
            words += [f"{key}={value}" for key, value in topic.attributes]
            lines.append(" ".join(words))
        return lines or ["(none)"]

    async def groups(self) -> list[str]:
        """Print the names of the subscription groups that are not built in."""
        known = self._running.parts.subscription_groups.all()
        return [" ".join(sorted(set(known) - self._built_in_groups)) or "(none)"]

    async def members(self, group: str) -> list[str]:
        """Print the members of a consumer group."""
        return await self.ask("GET_CONSUMER_LIST_BY_GROUP", consumerGroup=group)

    async def progress(self) -> list[str]:
        """Print the progress of the background work, and its counters."""
        parts = self._running.parts
        half = parts.transactions
        return [
            f"delayed={parts.delayed.progress()} timers={len(parts.timers)} "
            f"recalled={parts.timers.recalled_count} transactions={half.progress()} "
            f"asked={half.asked_count} repeated={half.repeated_count} lost={half.lost_count} "
            f"checkpoints={len(parts.pops.revive.checkpoints)} "
            f"held={len(parts.held_pulls) + len(parts.pops.held)}"
        ]

    async def refusals(self) -> list[str]:
        """Print the refusals of the limits."""
        counts = self._running.serving.refusals.counts
        return [" ".join(f"{name}={n}" for name, n in counts.items() if n) or "(none)"]

    async def cat(self, path: str, only: str | None = None) -> list[str]:
        """Print a file."""
        root = self._folder if path == "broker.conf" else self._folder / "store"
        text = (root / path).read_text().replace(str(self._folder), "ROOT")
        return [with_times(line) for line in shown_body(text.encode(), only)]

    async def write(self, path: str, body: str) -> None:
        """Write a file of the store."""
        (self._folder / "store" / path).write_text(value_of(body))

    async def remove(self, path: str) -> None:
        """Delete files of the store."""
        for file in (self._folder / "store").glob(path):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    async def exists(self, path: str) -> list[str]:
        """Print whether a file exists."""
        return ["yes" if (self._folder / "store" / path).exists() else "no"]

    # Internals ----------------------------------------------------------------------------------

    @property
    def _running(self) -> ScriptBroker:
        assert self._broker is not None, "the broker is not open"
        return self._broker

    def _note_asked(self, request: Command) -> None:
        """Record the copy of a half message that a producer is asked about."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            fields = request.ext_fields or {}
            body = messages_in(request.body)[0].body.decode()
            place = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
            self._halves.setdefault(body, []).append(place)

    def _connect(self) -> Channel:
        broker = self._running
        server = broker._servers[0]
        return Channel(server, broker._buffer, shared=broker.serving)

    def _step_store(self) -> None:
        broker = self._broker
        if broker is not None:
            broker.loops._step_memory()
            broker.parts.pending_replies.settle()

    def _received(self) -> list[str]:
        """Return the lines for received frames, and for the log."""
        lines, self._clients.printed[:] = [with_times(line) for line in self._clients.printed], []
        return lines
