"""A store with transactions, its clock, and a producer that gets checks."""

from typing import Any

import world
from reput.broker.topic.topics import Topics
from reput.broker.transaction import transactions
from reput.broker.transaction.transactions import End, Transactions
from reput.clock import ManualClock
from reput.format import message as record, names, properties as props
from reput.format.message import Host, StoredMessage
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.tables.topics import TopicTable
from reput.store.writing.incoming import IncomingMessage, PutResult
from store_subject import messages_of

GROUP = "producers"
TIMEOUT_MS = 6_000
INTERVAL_MS = 30_000
CHECKS_MAX = 3
PRODUCER_HOST = Host(b"\x0a\1\2\3", 4711)
BROKER_HOST = Host(b"\x0a\0\0\1", 10911)


class Subject:
    """Transactions on an open store. ``asked`` has the half messages of checks."""

    def __init__(
        self, store: MessageStore, clock: ManualClock, *, disk: Disk | None = None, **settings: Any
    ) -> None:
        self.clock = clock
        self.disk = disk or Disk()
        self.is_producer_here = True
        self.asked: list[StoredMessage] = []
        known = {
            "transaction_time_out": TIMEOUT_MS,
            "transaction_check_interval": INTERVAL_MS,
            "transaction_check_max": CHECKS_MAX,
        }
        self.config = world.broker_config(**{**known, **settings})
        self.take(store)

    def take(self, store: MessageStore) -> None:
        """Continue with another store, or with the same one opened again."""
        self.store = store
        self.offsets = ConsumerOffsetTable.load(store.root, self.disk)
        self.topics = Topics(TopicTable.load(store.root, self.disk), self.config)
        self.transactions = Transactions(store, self.topics, self.offsets, self.config, self._ask)
        self.transactions.store_host = BROKER_HOST
        self.transactions.load(self.clock.now_ms())

    def _ask(self, half: StoredMessage) -> bool:
        if self.is_producer_here:
            self.asked.append(half)
        return self.is_producer_here

    def send(
        self, body: bytes, properties: dict[str, str] | None = None, **more: Any
    ) -> StoredMessage:
        """Send a half message of topic T, queue 2; return its stored form."""
        kept = {"TAGS": "a", "TRAN_MSG": "true", "PGROUP": GROUP, **(properties or {})}
        message = IncomingMessage(
            "T",
            body,
            2,
            born_timestamp=more.pop("born_timestamp", self.clock.now_ms()),
            born_host=PRODUCER_HOST,
            store_host=BROKER_HOST,
            **more,
        )
        assert transactions.is_half(kept, message.reconsume_times)
        self.transactions.hold_back(message, kept, self.clock.now_ms())
        message.property_bytes = props.encode(kept)
        result = self.store.put(message, self.clock.now_ms())
        assert result.status.is_stored, result.reason
        self.store.step()
        return self.at(result.physical_offset)

    def at(self, physical_offset: int) -> StoredMessage:
        data = self.store.record_at(physical_offset)
        assert data is not None
        return record.decode(data)

    def commit(self, half: StoredMessage) -> PutResult:
        return self._decide(half, is_commit=True)

    def roll_back(self, half: StoredMessage) -> PutResult:
        return self._decide(half, is_commit=False)

    def _decide(self, half: StoredMessage, *, is_commit: bool) -> PutResult:
        now_ms = self.clock.now_ms()
        for _ in self.transactions.look_up(half):
            pass
        result = self.transactions.decide(half, is_commit=is_commit, now_ms=now_ms)
        self.store.step()
        return result

    def decide_all(self, decisions: list[tuple[StoredMessage, bool]]) -> int:
        """Decide half messages; return the number of decided ones."""
        group = GROUP.encode()
        ends = [End(half.queue_offset, half.physical_offset, group, is_commit)
                for half, is_commit in decisions]  # fmt: skip
        count = self.transactions.decide_all(ends, self.clock.now_ms())
        self.store.step()
        return count

    def round(self, after_ms: int = INTERVAL_MS) -> list[StoredMessage]:
        """Let time pass and run all due work; return the half messages of the checks."""
        self.asked.clear()
        self.clock.advance(after_ms)
        self.run()
        return list(self.asked)

    def run(self) -> None:
        while self.transactions.step(self.clock.now_ms()):
            self.store.step()
        self.store.step()

    def messages(self, topic: str = "T", queue_id: int = 2) -> list[StoredMessage]:
        return messages_of(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 2) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    def given_up(self) -> list[bytes]:
        return self.bodies(names.CHECK_MAX_TIME_TOPIC, 0)

    def ops(self) -> list[bytes]:
        return self.bodies(names.OP_HALF_TOPIC, 0)

    def saved(self) -> tuple[int | None, int | None]:
        """Return the saved progress of half and op messages."""
        topics = (names.HALF_TOPIC, names.OP_HALF_TOPIC)
        half, op = (self.offsets.get(topic, names.TRANSACTION_GROUP, 0) for topic in topics)
        return half, op

    def sync(self) -> None:
        """Make the stored messages durable, and notify the transactions."""
        self.store.sync()
        self.run()

    def save(self) -> None:
        self.offsets.save(self.clock.now_ms())
        self.topics.table.save(self.clock.now_ms())

    def stop(self) -> None:
        """Stop as a broker does."""
        self.transactions.close()
        self.save()
        self.store.close()
