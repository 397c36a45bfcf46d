"""A pair of brokers for random bytes, and what requests of it may refer to: see ``broker_pair``."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import broker_pair
import request_corpus as corpus
import seeds
from broker_pair import Pair
from fuzz import request_streams as streams
from fuzz.request_streams import Pop
from reput.format import names, sys_flag as flags
from reput.format.command import Serialization
from reput.format.message import Host
from reput.store.writing.incoming import IncomingMessage

QUEUE_COUNT = 10
PRODUCERS = ("g", "g", "g", "g", "h", "producers")
HALF = "UNIQ_KEY\1AC\2TRAN_MSG\1true\2PGROUP\1%s\2REAL_TOPIC\1%s\2REAL_QID\1%s\2"
HALVES = ("", "DELAY\0011\2", "PGROUP\1h\2", "PGROUP\1g\2", "TRAN_PREPARED_QUEUE_OFFSET\0010\2")
RETRIED = ("", "RETRY_TOPIC\1Orders\2", "ORIGIN_MESSAGE_ID\1AC\2", "WAIT\1true\2", "DELAY\0013\2",
           "REAL_TOPIC\1T\2REAL_QID\0011\2", "RETRY_TOPIC\1a\2RETRY_TOPIC\1b\2", "empty\1\2",
           "ORIGIN_MESSAGE_ID\1a\2ORIGIN_MESSAGE_ID\1b\2", "name\2", "KEYS\1k\2TAGS\1a\2",
           "\1v\2", "__CRC32#\00112345\2", "long\1" + "v" * 32_500 + "\2")  # fmt: skip


@contextlib.contextmanager
def open_paths(root: Path, **settings: Any) -> Iterator[Pair]:
    """Open a pair with the topics of ``request_streams``."""
    with broker_pair.open_pair(root, **settings) as pair:
        for topic in streams.TOPICS:
            pair.put_topic(topic, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT)
        yield pair
        assert pair.store.max_physical_offset > 0, "else this would test little"


def in_turn(count: int, check: Callable[[int], None], first: int | None = None) -> None:
    """Check a number of examples, each made from a seed.

    An example depends on the earlier ones: a failed run is repeated from the first example on.
    """
    if first is None:
        first = seeds.of("examples in turn") % 2**32
    for seed in range(first, first + count):
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(f"example {seed}, after those from {first} on") from error


def some_host(random: Random, odd: float = 1) -> Host:
    """Return an address of a client or a broker, mostly an IPv4 one."""
    if random.random() < 0.05 * odd:
        return Host(bytes(15) + b"\1", 4711)
    return Host(bytes([192, 0, 2, random.randrange(256)]), random.randrange(65_536))


def put_halves(pair: Pair, random: Random) -> None:
    """Store a half message; some have a form that no client sends."""
    topic = random.choice([*streams.TOPICS, "RMQ_SYS_TRACE_TOPIC", "T", "T", "a.b", "Nobody"])
    queue_id = random.choice(["0", "3", "-1", "x", "2147483648", "4294967296", "007"])
    text = HALF % (random.choice(PRODUCERS), topic, queue_id if random.random() < 0.3 else "0")
    properties = text + (random.choice(HALVES) if random.random() < 0.4 else "")
    sys_flag = random.choice([0, 0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK])
    message = IncomingMessage(
        names.HALF_TOPIC, b"half", 0, properties.encode(), sys_flag=sys_flag, is_due=True
    )
    pair.put(message, is_noted=False)


def put_consumed(pair: Pair, random: Random) -> None:
    """Store a message to send back; some have a form that no client sends."""
    properties = "".join(random.choices(RETRIED, k=random.choice([0, 1, 2])))
    message = IncomingMessage(
        random.choice(["T", "U", "Orders"]), b"consumed", 0, properties.encode()[:32_767],
        pair.now_ms, some_host(random), some_host(random),
        reconsume_times=random.choice([0, 0, 1, 2, 3, 14, 15, 16, 17, -1, (1 << 31) - 1]),
        sys_flag=random.choice([*[0] * 12, 1, 1, 4, 12]),
    )  # fmt: skip
    pair.put(message)


class Requests:
    """Random requests about the messages in the brokers.

    They end transactions, or pull and pop: the paths may answer a held request before or after the
    commit that wakes it.

    Args:
        pair: The brokers.
        random: Makes the choices.
        odd: How many requests differ from those of a client, 0 to 1.
    """

    def __init__(self, pair: Pair, random: Random, odd: float) -> None:
        self.pair = pair
        self.random = random
        self.odd = odd
        self.ends_some = random.random() < 0.4
        self.pops = pops_of(pair)
        self.halves = halves_of(pair)
        self.records = pair.last_records(10) or [0]
        end = pair.store.max_offset("T", 0)
        self.offsets = [end, max(0, end - 2), max(0, end - 9), max(0, end - 5), 0]
        self.readers = streams.some_readers(random)

    def some(self) -> list[bytes]:
        """Return requests of some kind."""
        random, odd, now_ms = self.random, self.odd, self.pair.now_ms
        makers: list[Callable[[], list[bytes]]] = [
            *[lambda: [streams.some_send(random, odd, now_ms)]] * 2,
            lambda: streams.sends(random)[:5],
            lambda: streams.some_acks(random, odd, self.pops),
            lambda: [streams.some_ack_batch(random, odd, self.pops)],
            lambda: [streams.some_send_back(random, odd, self.records)],
            lambda: [streams.some_lookup(random, odd, self.records, now_ms)],
            lambda: [streams.heartbeat(random)],
        ]
        if self.ends_some:
            makers += [lambda: [streams.some_end(random, odd, self.halves, "g")]] * 2
        else:
            makers += [self._pulls, lambda: [streams.some_pop(random, odd, now_ms)]]
        return random.choice(makers)()

    def _pulls(self) -> list[bytes]:
        return [
            streams.some_pull(self.random, self.odd, self.offsets, self.readers) for _ in range(6)
        ]

    def of_corpus(self) -> bytes:
        """Return a request of the corpus."""
        random = self.random
        kinds: list[tuple[Any, ...]] = [
            (corpus.send, corpus.SENDS, corpus.OTHER_SENDS),
            (corpus.ack, corpus.ACKS, corpus.OTHER_ACKS),
            (None, corpus.ACK_BATCHES, corpus.OTHER_ACK_BATCHES),
            (None, corpus.LOOKUPS, corpus.OTHER_LOOKUPS),
            (self._send_back, corpus.SEND_BACKS, corpus.OTHER_SEND_BACKS),
        ]
        if self.ends_some:
            kinds.append((self._end, corpus.ENDS, corpus.OTHER_ENDS))
        else:
            kinds.append((corpus.pull, corpus.PULLS, corpus.OTHER_PULLS))
            kinds.append((corpus.pop, corpus.POPS, corpus.OTHER_POPS))
        make, *tables = random.choice(kinds)
        request: Any = random.choice(list(random.choice(tables).values()))
        if make is None:
            return bytes(request)
        is_json = make in (corpus.pop, corpus.ack)
        kind = Serialization.JSON if is_json else random.choice(list(Serialization))
        return bytes(make(**{"serialization": kind} | request))

    def _end(self, **fields: Any) -> bytes:
        return corpus.end(self.random.choice(self.halves), **fields)

    def _send_back(self, **fields: Any) -> bytes:
        return corpus.send_back(self.random.choice(self.records), **fields)


def pops_of(pair: Pair) -> list[Pop]:
    """Return pops with messages to acknowledge, and three that never happened."""
    checkpoints = pair.parts[0].pops.revive.checkpoints
    pops = [
        Pop(key.topic, key.group, key.queue_id, key.start_offset, key.pop_ms, 6)
        for key in list(checkpoints._by_key)[-4:]
    ]
    last = pops[-1] if pops else Pop("T", "group", 0, 7, pair.now_ms)
    topic, group, queue_id, start, pop_ms = (
        last.topic, last.group, last.queue_id, last.start, last.pop_ms,
    )  # fmt: skip
    return [
        *pops,
        Pop(topic, group[::-1], queue_id, start, pop_ms),
        Pop(topic, group, queue_id, start, pop_ms + 1, 6),
        last,
        Pop(topic, group, queue_id, start + 2, pop_ms, 6),
    ]


def halves_of(pair: Pair) -> list[tuple[int, int]]:
    """Return queue offset and physical offset of the last half messages."""
    queue = pair.store.queues.find(names.HALF_TOPIC, 0)
    if queue is None:
        return [(0, 0)]
    begin = max(queue.min_offset, queue.max_offset - 12)
    units = queue.units(begin, 12)
    return list(enumerate(units["physical_offset"].tolist(), begin)) or [(0, 0)]
