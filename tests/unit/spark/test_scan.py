"""Reads planned, pickled and run without Spark, compared with the manifests by Java."""

import itertools
import json
import shutil
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from reput.errors import CorruptRecord, InvalidOption, ReputError, StoreUnavailable
from reput.format import cq_unit, message_id, sys_flag as flags
from reput.spark import plan, portions, scan
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.store_planner import DataLoss
from spark import reading
from spark.reading import message_offsets, offsets, read, read_light

ALL = "all"
STORE = pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
TORN = pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
ONE_VERSION = pytest.mark.parametrize(
    "version", golden.VERSIONS if golden.IS_SOAK else golden.VERSIONS[-1:]
)
TIMED = [
    (version, name)
    for version, name in golden.EACH_STORE
    if name in ("clean", "unclean", "expired", "expired-nocq-recovered")
]
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "SALVAGE")

Messages = list[dict[str, Any]]


def clean(version: str) -> Path:
    return golden.unpack(version, "clean")


def chosen(version: str, name: str, wants: Callable[[dict[str, Any]], bool]) -> list[int]:
    """Return the physical offsets of the selected visible messages of a manifest."""
    messages = reading.visible(golden.messages(version, name))
    return [message["commitLogOffset"] for message in messages if wants(message)]


def topics_of(messages: Messages) -> list[str]:
    return sorted({message["topic"] for message in messages})


# --- whole stores -----------------------------------------------------------


@VERSION
@pytest.mark.sampled(3)
def test_every_undamaged_recovered_variant_equals_its_manifest(version: str) -> None:
    variants = golden.torn_recovered(version)
    for variant in variants if version == "4.9.7" else ("no-cq-no-index-abort", "cq-zeroed-abort"):
        name = f"torn/{variant}-recovered"
        left = reading.damaged(version, variant)
        if left.runs or variant in ("torn-tail", "cq-ahead"):
            continue  # Java cut these logs in memory, but left the bytes on disk
        got = read_light(golden.unpack(version, name), readIsolation=ALL)
        assert offsets(got.rows) == message_offsets(golden.messages(version, name)), variant


@STORE
@pytest.mark.sampled(4)
def test_half_messages_are_hidden_by_default(version: str, name: str) -> None:
    store = golden.unpack(version, name)
    messages = golden.messages(version, name)
    shown = {
        "committed": [
            message for message in messages if message["topic"] not in reading.HIDDEN_TOPICS
        ],
        "half": [message for message in messages if message["topic"] != reading.HIDDEN_TOPICS[1]],
        ALL: messages,
    }
    assert offsets(read_light(store).rows) == message_offsets(shown["committed"])
    for isolation, wanted in shown.items():
        got = read_light(store, readIsolation=isolation)
        assert offsets(got.rows) == message_offsets(wanted)


def test_uncommitted_messages_in_their_own_topic_are_hidden_too(tmp_path: Path) -> None:
    # Stored as by brokers before 4.3: without a unit, found only in the log.
    kinds = [flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK, 0]
    messages = [
        store_builder.message("T", b"x", keys=f"k{i}", sys_flag=kind)
        for i, kind in enumerate(kinds)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    every = [message.physical_offset for message in built.messages]
    for how in ("auto", "log", "consumequeue"):
        for topic in ({}, {"topic": "T"}):
            assert offsets(read_light(built.root, scan=how, **topic).rows) == [every[1], every[3]]
            got = read_light(built.root, scan=how, readIsolation=ALL, **topic)
            assert sorted(offsets(got.rows)) == every
    for i in range(4):
        got = read_light(built.root, key=f"k{i}", readIsolation=ALL)
        assert offsets(got.rows) == [every[i]]
        assert offsets(read_light(built.root, key=f"k{i}").rows) == every[i : i + 1] * (i % 2)


@VERSION
def test_a_named_half_topic_is_shown(version: str) -> None:
    for topic in reading.HIDDEN_TOPICS:
        wanted = [
            message for message in golden.messages(version, "clean") if message["topic"] == topic
        ]
        assert wanted
        got = read_light(clean(version), topic=topic)
        assert sorted(offsets(got.rows)) == message_offsets(wanted)


def test_several_stores_are_one_read(tmp_path: Path) -> None:
    stores = [golden.unpack(version, "ext") for version in golden.VERSIONS]
    every = Counter(
        offset
        for version in golden.VERSIONS
        for offset in message_offsets(golden.messages(version, "ext"))
    )
    by_comma = read_light(",".join(map(str, stores)))
    assert Counter(offsets(by_comma.rows)) == every
    assert {task.partition.store for task in by_comma.tasks} == {0, 1, 2}
    by_list = read_light(None, paths=[str(store) for store in stores])
    assert Counter(offsets(by_list.rows)) == every


def test_a_pattern_reads_the_matching_stores(tmp_path: Path) -> None:
    for name in ("b", "a", "no-store"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        shutil.copytree(golden.unpack("4.9.7", "ext"), tmp_path / name / "store")
    got = read_light(f"{tmp_path}/*/store")
    assert len(got.rows) == 2 * len(golden.messages("4.9.7", "ext"))
    assert [task.facts.path for task in got.tasks] == [f"{tmp_path}/{n}/store" for n in "ab"]
    (tmp_path / "a[1]").symlink_to(tmp_path / "a")
    assert len(read_light(f"{tmp_path}/a[1]/store").tasks) == 1
    with pytest.raises(InvalidOption, match=r"option 'path' is '.*nothing.*'; allowed: a pattern"):
        read(f"{tmp_path}/nothing*")


def test_a_store_at_a_uri() -> None:
    store = clean("4.9.7")
    expected = offsets(read_light(store).rows)
    assert offsets(read_light(f"file://{store}").rows) == expected


@pytest.mark.parametrize("path", ["/nowhere", __file__, str(Path(__file__).parent)])
def test_a_folder_without_a_store_is_refused(path: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"give the folder|no store"):
        read(path)


def test_a_store_without_a_record_has_no_rows(tmp_path: Path) -> None:
    store_builder.build(tmp_path / "store", [])
    (tmp_path / "store" / "commitlog").mkdir()
    for how in ("auto", "log"):
        assert read(tmp_path / "store", scan=how) == ([], [], read(tmp_path / "store").summary)


# --- stores of running brokers ----------------------------------------------


@pytest.fixture
def lock_holder() -> Iterator[Callable[[Path], int]]:
    """Start a process that locks a store like a broker, and return its id."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    started: list[subprocess.Popen[bytes]] = []

    def hold(store: Path) -> int:
        (store / "lock").touch()
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(store / "lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        return child.pid

    yield hold
    for child in started:
        child.communicate()


def test_a_running_broker_is_refused_unless_allowed(
    tmp_path: Path, lock_holder: Callable[[Path], int]
) -> None:
    store = golden.copy_store("4.9.7", "unclean", tmp_path)
    process = lock_holder(store)
    with pytest.raises(StoreUnavailable, match=f"in use by process {process}.*allowLive=true"):
        read(store)
    messages = golden.messages("4.9.7", "unclean")
    got = read_light(store, allowLive=True, readIsolation=ALL)
    # The last record may be half written: no record follows it, and no queue points at it.
    assert offsets(got.rows) == message_offsets(messages)[:-1]
    for topic, _ in Counter(message["topic"] for message in messages[:-1]).most_common(4):
        wanted = [
            message["commitLogOffset"] for message in messages[:-1] if message["topic"] == topic
        ]
        got = read_light(store, allowLive=True, topic=topic, scan="consumequeue")
        assert sorted(offsets(got.rows)) == wanted


def test_a_changed_store_is_read_again(tmp_path: Path) -> None:
    """Python workers are reused: facts cached from one read must not serve the next."""
    messages = store_builder.messages(40)
    store_builder.build(tmp_path / "store", messages[:20])
    assert len(read_light(tmp_path / "store").rows) == 20
    shutil.rmtree(tmp_path / "store")
    store_builder.build(tmp_path / "store", messages)
    assert len(read_light(tmp_path / "store").rows) == 40


# --- one topic, three ways --------------------------------------------------


@ONE_VERSION
def test_a_topic_reads_the_same_by_log_by_queue_and_as_planned(version: str) -> None:
    store, messages = clean(version), golden.messages(version, "clean")
    for topic in topics_of(messages):
        wanted = [message["commitLogOffset"] for message in messages if message["topic"] == topic]
        for how in ("log", "consumequeue", "auto"):
            got = read_light(store, topic=topic, scan=how)
            assert sorted(offsets(got.rows)) == wanted, (topic, how)
            kinds = {type(task.partition) for task in got.tasks}
            forced = {"log": {plan.LogRange}, "consumequeue": {plan.QueueRange}}
            assert how == "auto" or kinds == forced[how], topic


@STORE
@pytest.mark.sampled(4)
def test_topics_by_queue_are_the_topics_by_log(version: str, name: str) -> None:
    store, messages = golden.unpack(version, name), golden.messages(version, name)
    topics = topics_of(messages)
    for some in (topics[::2], topics[1::2]):
        wanted = [message["commitLogOffset"] for message in messages if message["topic"] in some]
        for how in ("log", "consumequeue", "auto"):
            got = read_light(store, topics=",".join(some), scan=how)
            assert sorted(offsets(got.rows)) == wanted, how


@VERSION
def test_messages_without_a_unit_are_read(version: str) -> None:
    store, messages = golden.unpack(version, "unclean"), golden.messages(version, "unclean")
    unqueued = set(golden.manifest(version, "unclean")["recordsNotInQueues"])
    for topic in topics_of(
        [message for message in messages if message["commitLogOffset"] in unqueued]
    ):
        wanted = [message["commitLogOffset"] for message in messages if message["topic"] == topic]
        assert unqueued & {*wanted}
        for how in ("consumequeue", "auto"):
            got = read_light(store, topic=topic, scan=how)
            assert sorted(offsets(got.rows)) == wanted


@TORN
@pytest.mark.sampled(6)
def test_damaged_queues_hide_nothing(version: str, variant: str) -> None:
    """No fewer rows than the log holds, and each once, with every kind of scan."""
    store, left = golden.unpack(version, f"torn/{variant}"), reading.damaged(version, variant)
    topics = topics_of(golden.messages(version, "clean"))
    for some in (topics[::2], topics[1::2]):
        wanted = [message["commitLogOffset"] for message in left.good if message["topic"] in some]
        lossy = {"failOnDataLoss": variant != "cq-ahead", "mode": "PERMISSIVE"}
        got = read_light(store, topics=",".join(some), scan="consumequeue", **lossy)
        assert offsets(got.messages) == wanted
        assert {row["physical_offset"] for row in got.damage} <= {run[0] for run in left.runs} | {
            message["commitLogOffset"] for message in golden.messages(version, "clean")
        }


@VERSION
@pytest.mark.parametrize("variant", ["cq-zeroed", "cq-zeroed-abort", "no-cq", "cq-short"])
@pytest.mark.sampled(4)
def test_each_topic_of_damaged_queues_is_whole(version: str, variant: str) -> None:
    store, messages = golden.unpack(version, f"torn/{variant}"), golden.messages(version, "clean")
    sizes = Counter(message["topic"] for message in messages)
    for topic, _ in sizes.most_common(6):
        wanted = [message["commitLogOffset"] for message in messages if message["topic"] == topic]
        assert sorted(offsets(read_light(store, topic=topic).rows)) == wanted


def test_messages_of_a_deleted_queue_are_found_in_the_log(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(80, queues=4))
    shutil.rmtree(built.queue_file("TopicA", 1).parent)
    for how in ("auto", "consumequeue"):
        got = read_light(built.root, topic="TopicA", scan=how)
        wanted = [
            message.physical_offset for message in built.messages if message.topic == "TopicA"
        ]
        assert sorted(offsets(got.rows)) == wanted


def test_any_single_damaged_unit_hides_nothing(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(60))
    path = built.queue_file("TopicA", 0, 0)
    data = path.read_bytes()
    queue = built.queue("TopicA")
    wanted = [message.physical_offset for message in built.messages if message.topic == "TopicA"]
    nothing = bytes(cq_unit.SIZE)
    foreign = cq_unit.pack(cq_unit.Unit(built.messages[1].physical_offset, 100, 0))
    beyond = cq_unit.pack(cq_unit.Unit(built.end_offset - 10, 500, 0))
    for number in range(len(queue)):
        position = number * cq_unit.SIZE
        for unit in (nothing, foreign, beyond):
            path.write_bytes(data[:position] + unit + data[position + cq_unit.SIZE :])
            options = {"mode": "PERMISSIVE", "failOnDataLoss": unit is not beyond}
            got = read_light(built.root, topic="TopicA", scan="consumequeue", **options)
            assert offsets(got.messages) == wanted, (number, unit)


def test_a_unit_of_another_message_of_the_same_size_is_reported(tmp_path: Path) -> None:
    messages = [
        store_builder.message("AB"[i % 2], b"body", unique_key=f"{i:032}") for i in range(8)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    assert len({message.store_size for message in built.messages}) == 1
    path = built.queue_file("A")
    foreign = built.messages[3]
    unit = cq_unit.pack(cq_unit.Unit(foreign.physical_offset, foreign.store_size, 0))
    path.write_bytes(
        path.read_bytes()[: cq_unit.SIZE] + unit + path.read_bytes()[2 * cq_unit.SIZE :]
    )
    with pytest.raises(CorruptRecord, match=r"another message \(queue A/0, queue offset 1\)") as e:
        read(built.root, topic="A", scan="consumequeue")
    assert e.value.physical_offset == foreign.physical_offset
    got = read(built.root, topic="A", scan="consumequeue", mode="PERMISSIVE")
    assert len(got.messages) == 3
    (row,) = got.damage
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == ("A", 0, 1)
    assert row["_corrupt_record"] == "the unit points at another message"


# --- topics -----------------------------------------------------------------


@VERSION
@pytest.mark.sampled(3)
def test_topics_by_pattern_and_by_kind(version: str) -> None:
    store = clean(version)
    got = read_light(store, subscribePattern="Golden(One|Four)")
    assert sorted(offsets(got.rows)) == chosen(
        version, "clean", lambda message: message["topic"] in ("GoldenOne", "GoldenFour")
    )
    assert not read(store, subscribePattern="Golden").rows
    retry, dlq = "%RETRY%", "%DLQ%"
    system = {"SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT"}
    for option, is_of_kind in {
        "includeRetry": lambda topic: topic.startswith(retry),
        "includeDlq": lambda topic: topic.startswith(dlq),
        "includeSystemTopics": lambda topic: topic in system or topic.startswith("rmq_sys_"),
    }.items():
        left = chosen(version, "clean", lambda message, kind=is_of_kind: not kind(message["topic"]))
        assert len(left) < len(reading.visible(golden.messages(version, "clean")))
        for how in ("auto", "log"):
            assert offsets(read_light(store, scan=how, **{option: False}).rows) == left
    # Named topics are read whatever their kind; predicates do not count as names.
    named = next(t for t in topics_of(golden.messages(version, "clean")) if t.startswith(retry))
    wanted = chosen(version, "clean", lambda message: message["topic"] == named)
    assert sorted(offsets(read_light(store, topic=named, includeRetry=False).rows)) == wanted
    predicate = from_values("topic", [named])
    assert sorted(offsets(read_light(store, predicate).rows)) == wanted
    assert not read_light(store, predicate, includeRetry=False).rows
    assert not read_light(store, from_values("topic", [reading.HIDDEN_TOPICS[0]])).rows


@VERSION
def test_assigned_queues(version: str) -> None:
    store = clean(version)
    assign = {"GoldenFour": {reading.BROKER: [1, 3]}, "GoldenOne": {reading.BROKER: [0]}}
    wanted = chosen(
        version,
        "clean",
        lambda message: (
            message["queueId"] in assign.get(message["topic"], {}).get(reading.BROKER, ())
        ),
    )
    for how in ("auto", "log", "consumequeue"):
        assert sorted(offsets(read_light(store, assign=assign, scan=how).rows)) == wanted


def test_missing_topics_and_queues() -> None:
    store = clean("4.9.7")
    with pytest.raises(DataLoss, match=r"topic 'Golden0ne' is not in .*; it has .*failOnDataLoss"):
        read(store, topic="GoldenOne,Golden0ne")
    got = read_light(store, topic="GoldenOne,Golden0ne", failOnDataLoss=False)
    assert len(got.rows) == len(
        chosen("4.9.7", "clean", lambda message: message["topic"] == "GoldenOne")
    )
    assert "data loss: topic 'Golden0ne'" in got.summary
    assign = {"GoldenFour": {reading.BROKER: [1, 77]}}
    with pytest.raises(DataLoss, match="queue GoldenFour/77 is not in"):
        read(store, assign=assign)
    assert read_light(store, assign=assign, failOnDataLoss=False).rows
    with pytest.raises(InvalidOption, match="light queue"):
        read(golden.unpack("5.5.0", "v5"), topic="%LMQ%first")


@pytest.mark.parametrize(
    "option",
    [
        {"assign": {"GoldenOne": {"broker-b": [0]}}},
        {"startingOffsets": {"GoldenOne": {"broker-b": {"0": 3}}}},
        {"endingOffsets": {"GoldenOne": {"broker-b": {"0": 3}}}},
        {"startingOffsetsByTimestamp": {"GoldenOne": {"broker-b": {"0": 3}}}},
        {"endingOffsetsByTimestamp": {"GoldenOne": {"broker-b": {"0": 3}}}},
    ],
)
def test_a_broker_that_has_none_of_the_stores_is_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidOption, match=f"option '{name}' is 'broker-b'; .*broker-a"):
        read(clean("4.9.7"), **option)
    assert read_light(clean("4.9.7"), broker="broker-b", **option).rows


def test_json_options_by_the_broker_of_each_store(tmp_path: Path) -> None:
    """A store whose tables do not name its broker takes the option's only broker."""
    known = golden.unpack("4.9.7", "ext")
    topic, queue_id = "GoldenFilter", 0
    messages = golden.messages("4.9.7", "ext")
    topic = Counter(message["topic"] for message in messages).most_common(1)[0][0]
    queue_id = next(message["queueId"] for message in messages if message["topic"] == topic)
    wanted = [
        message["commitLogOffset"]
        for message in messages
        if (message["topic"], message["queueId"]) == (topic, queue_id)
    ]
    nameless = golden.copy_store("4.9.7", "ext", tmp_path)
    shutil.rmtree(nameless / "config")
    assert sorted(offsets(read_light(nameless, assign={topic: {"any": [queue_id]}}).rows)) == wanted
    two = {topic: {"any": [queue_id], "other": [queue_id]}}
    with pytest.raises(InvalidOption, match=r"option 'assign' is 'any'.*option broker"):
        read(nameless, assign=two)
    both = read_light(f"{known},{nameless}", assign={topic: {"broker-a": [queue_id]}})
    assert Counter(offsets(both.rows)) == Counter([*wanted, *wanted])


# --- starts and ends --------------------------------------------------------

Queue = tuple[str, int]
Limits = dict[Queue, tuple[float, float]]


def queues_of(messages: Messages) -> dict[Queue, Messages]:
    by_queue: dict[Queue, Messages] = defaultdict(list)
    for message in messages:
        by_queue[message["topic"], message["queueId"]].append(message)
    for queue in by_queue.values():
        queue.sort(key=lambda message: message["queueOffset"])
    return by_queue


def within(messages: Messages, limits: Limits) -> list[int]:
    everything = (0, float("inf"))
    return [
        message["commitLogOffset"]
        for message in messages
        for low, high in [limits.get((message["topic"], message["queueId"]), everything)]
        if low <= message["queueOffset"] < high
    ]


def by_broker(limits: dict[Queue, int]) -> dict[str, Any]:
    """Return the JSON of an option."""
    table: dict[str, Any] = {}
    for (topic, queue_id), number in limits.items():
        table.setdefault(topic, {reading.BROKER: {}})[reading.BROKER][str(queue_id)] = number
    return table


@pytest.mark.parametrize("how", ["auto", "log", "consumequeue"])
@pytest.mark.parametrize("name", ["clean", "unclean", "expired"])
@VERSION
@pytest.mark.sampled(6)
def test_offsets_of_queues(version: str, name: str, how: str) -> None:
    store, messages = golden.unpack(version, name), reading.visible(golden.messages(version, name))
    large = {q: some for q, some in queues_of(messages).items() if len(some) > 4}
    starts = {q: some[len(some) // 3]["queueOffset"] for q, some in large.items()}
    stops = {q: some[-2]["queueOffset"] for q, some in large.items()}
    wanted = within(messages, {q: (starts[q], stops[q]) for q in large})
    got = read_light(
        store, startingOffsets=by_broker(starts), endingOffsets=by_broker(stops), scan=how
    )
    assert sorted(offsets(got.rows)) == wanted
    some = dict(list(starts.items())[::2])
    words = dict.fromkeys(list(starts)[1::2], -2)
    got = read_light(store, startingOffsets=by_broker({**some, **words}), scan=how)
    assert sorted(offsets(got.rows)) == within(
        messages, {q: (start, float("inf")) for q, start in some.items()}
    )
    got = read_light(store, endingOffsets=by_broker({**stops, ("GoldenOne", 0): -1}), scan=how)
    limits: Limits = {q: (0, stop) for q, stop in stops.items() if q != ("GoldenOne", 0)}
    assert sorted(offsets(got.rows)) == within(messages, limits)


@pytest.mark.parametrize(("version", "name"), TIMED)
@pytest.mark.sampled(2)
def test_timestamps(version: str, name: str) -> None:
    """Reads start at a queue's first message at or after a time (known-bugs.md#offset-by-time)."""
    store, messages = golden.unpack(version, name), reading.visible(golden.messages(version, name))
    times = sorted({message["storeTimestamp"] for message in messages})

    def limits(start: float, stop: float) -> Limits:
        def first(queue: Messages, time_ms: float) -> float:
            queue_offsets = (
                message["queueOffset"] for message in queue if message["storeTimestamp"] >= time_ms
            )
            return next(queue_offsets, float("inf"))

        return {
            key: (first(queue, start), first(queue, stop))
            for key, queue in queues_of(messages).items()
        }

    places = [times[0] - 1, times[0], times[len(times) // 2], times[-1], times[-1] + 1]
    for low, high in itertools.pairwise(places):
        got = read_light(store, startingTimestamp=low, endingTimestamp=high)
        assert sorted(offsets(got.rows)) == within(messages, limits(low, high)), (low, high)
    middle = times[len(times) // 2]
    for how in ("log", "consumequeue"):
        got = read_light(store, startingTimestamp=middle + 1, scan=how)
        assert sorted(offsets(got.rows)) == within(messages, limits(middle + 1, float("inf")))
        got = read_light(store, endingTimestamp=middle, scan=how)
        assert sorted(offsets(got.rows)) == within(messages, limits(0, middle))


@VERSION
def test_timestamps_of_queues(version: str) -> None:
    store, messages = clean(version), reading.visible(golden.messages(version, "clean"))
    large = {q: some for q, some in queues_of(messages).items() if len(some) > 4}
    starts = {q: some[2]["storeTimestamp"] for q, some in large.items()}
    stops = {q: some[-1]["storeTimestamp"] for q, some in large.items()}
    wanted = [
        message["commitLogOffset"]
        for message in messages
        for q in [(message["topic"], message["queueId"])]
        if starts.get(q, 0) <= message["storeTimestamp"] < stops.get(q, float("inf"))
    ]
    got = read_light(
        store,
        startingOffsetsByTimestamp=by_broker(starts),
        endingOffsetsByTimestamp=by_broker(stops),
    )
    assert sorted(offsets(got.rows)) == wanted
    queue = next(iter(large))
    late = by_broker({queue: large[queue][-1]["storeTimestamp"] + 1})
    with pytest.raises(
        InvalidOption, match=r"'startingOffsetsByTimestamp' is \d+.*Strategy=latest"
    ):
        read(store, startingOffsetsByTimestamp=late)
    got = read_light(
        store, startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="latest"
    )
    assert sorted(offsets(got.rows)) == within(messages, {queue: (float("inf"), 0)})
    # A time for all queues excludes queues without a message at or after it.
    newest = max(message["storeTimestamp"] for message in messages)
    got = read_light(store, startingTimestamp=newest, startingOffsetsByTimestamp=late)
    assert offsets(got.rows) == chosen(
        version, "clean", lambda message: message["storeTimestamp"] == newest
    )


def test_precedence_of_timestamps_queue_timestamps_and_offsets() -> None:
    store = clean("4.9.7")
    queue = queues_of(golden.messages("4.9.7", "clean"))["GoldenOne", 0]
    early, late = queue[5]["storeTimestamp"], queue[20]["storeTimestamp"]
    starts = {
        "startingOffsets": by_broker({("GoldenOne", 0): 30}),
        "startingOffsetsByTimestamp": by_broker({("GoldenOne", 0): late}),
        "startingTimestamp": early,
    }
    first = {
        "startingOffsets": 30,
        "startingOffsetsByTimestamp": next(
            message["queueOffset"] for message in queue if message["storeTimestamp"] >= late
        ),
        "startingTimestamp": next(
            message["queueOffset"] for message in queue if message["storeTimestamp"] >= early
        ),
    }
    assert len({*first.values()}) == 3
    for count in (1, 2, 3):
        given = dict(list(starts.items())[:count])
        got = read_light(store, topic="GoldenOne", **given)
        assert got.rows[0]["queue_offset"] == first[list(given)[-1]]
    ends = {name.replace("starting", "ending"): value for name, value in starts.items()}
    for count in (1, 2, 3):
        given = dict(list(ends.items())[:count])
        got = read_light(store, topic="GoldenOne", **given)
        name = list(given)[-1].replace("ending", "starting")
        assert got.rows[-1]["queue_offset"] == first[name] - 1


@VERSION
def test_reads_from_the_offsets_of_a_group(version: str) -> None:
    store, messages = clean(version), reading.visible(golden.messages(version, "clean"))
    offsets_table = golden.manifest(version, "clean")["consumerOffsets"]
    own = {
        (key.removesuffix("@CG_Offsets"), int(queue_id)): offset
        for key, queues in offsets_table.items()
        if key.endswith("@CG_Offsets")
        for queue_id, offset in queues.items()
    }
    assert own
    got = read_light(store, startingOffsets="group:CG_Offsets")
    assert sorted(offsets(got.rows)) == within(
        messages, {q: (start, float("inf")) for q, start in own.items()}
    )
    got = read_light(store, endingOffsets="group:CG_Offsets", topic="GoldenFour")
    four = [message for message in messages if message["topic"] == "GoldenFour"]
    assert sorted(offsets(got.rows)) == within(four, {q: (0, stop) for q, stop in own.items()})
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(
            InvalidOption, match=f"option '{name}' is 'group:NoSuchGroup'.*CG_Offsets"
        ):
            read(store, **{name: "group:NoSuchGroup"})


@VERSION
@pytest.mark.sampled(3)
def test_physical_offsets(version: str) -> None:
    store, messages = clean(version), reading.visible(golden.messages(version, "clean"))
    places = message_offsets(messages)
    low, high = places[100], places[500]
    for start, stop in [(low, high), (low + 1, high + 1), (low - 1, high - 1), (0, 1), (high, low)]:
        options = {"startingPhysicalOffset": start, "endingPhysicalOffset": stop}
        if start > stop:
            with pytest.raises(InvalidOption, match="endingPhysicalOffset"):
                read(store, **options)
            continue
        wanted = [place for place in places if start <= place < stop]
        assert offsets(read_light(store, **options).rows) == wanted
        got = read_light(store, topic="GoldenOne", scan="consumequeue", **options)
        of_topic = chosen(version, "clean", lambda message: message["topic"] == "GoldenOne")
        assert offsets(got.rows) == [place for place in wanted if place in of_topic]
    assert offsets(read_light(store, startingPhysicalOffset=low).rows) == places[100:]
    assert offsets(read_light(store, endingPhysicalOffset=low).rows) == places[:100]
    assert not read(store, startingPhysicalOffset=places[-1] + 1).rows
    assert not read(store, startingPhysicalOffset=1 << 50).rows


@VERSION
@pytest.mark.sampled(3)
def test_offsets_outside_a_queue_are_data_loss(version: str) -> None:
    store = golden.unpack(version, "expired")
    queue = next(
        queue
        for queue in golden.manifest(version, "expired")["queues"]
        if queue["minOffset"] > 2 and queue["maxOffset"] > queue["minOffset"] + 2
    )
    name = queue["topic"], queue["queueId"]
    low, high = queue["minOffset"], queue["maxOffset"]
    everything = read_light(store, topic=name[0])
    inside = [row for row in everything.rows if row["queue_id"] == name[1]]
    assert [row["queue_offset"] for row in inside] == list(range(low, high))
    assign = {name[0]: {reading.BROKER: [name[1]]}}
    for options, left in [
        ({"startingOffsets": by_broker({name: low - 1})}, inside),
        ({"startingOffsets": by_broker({name: high + 1})}, []),
        ({"endingOffsets": by_broker({name: high + 1})}, inside),
        ({"endingOffsets": by_broker({name: low - 1})}, []),
    ]:
        text = rf"queue {name[0]}/{name[1]} of .* holds {low} to {high}, asked for were \d+ to \d+"
        with pytest.raises(DataLoss, match=text):
            read(store, assign=assign, **options)
        got = read_light(store, assign=assign, failOnDataLoss=False, **options)
        assert offsets(got.rows) == offsets(left)
    for fine in (
        {"startingOffsets": by_broker({name: high})},
        {"endingOffsets": by_broker({name: low})},
    ):
        assert not read(store, assign=assign, **fine).rows


@VERSION
def test_a_log_cut_before_the_end_of_its_queues_is_data_loss(version: str) -> None:
    store = golden.unpack(version, "torn/cq-ahead")
    with pytest.raises(DataLoss, match=r"queue .* has messages up to physical offset \d+, the log"):
        read(store)
    left = reading.damaged(version, "cq-ahead").good
    got = read_light(store, failOnDataLoss=False, readIsolation=ALL)
    assert offsets(got.rows) == message_offsets(left)


def test_a_range_may_begin_or_end_inside_of_a_batch_of_java() -> None:
    store = golden.unpack("5.5.0", "v5")
    topic = "GoldenBatch-bcq"
    for start, stop in ((0, 12), (3, 12), (4, 12), (6, 11), (11, 12), (12, 12), (0, 5), (5, 6)):
        got = read_light(
            store,
            topic=topic,
            startingOffsets=by_broker({(topic, 0): start}),
            endingOffsets=by_broker({(topic, 0): stop}),
        )
        assert [row["queue_offset"] for row in got.rows] == list(range(start, stop))


# --- partitions -------------------------------------------------------------


def fields(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["physical_offset"], row["queue_id"], row["store_size"], row.get("_corrupt_record")


SPLITS = [
    {"maxBytesPerPartition": "1k"},
    {"maxBytesPerPartition": 5000},
    {"maxBytesPerPartition": "64k"},
    {"minPartitions": 7},
    {"minPartitions": 50},
    {"maxRecordsPerPartition": 10},
]
EACH_SPLIT = [
    (version, split)
    for number, split in enumerate(SPLITS)
    for version in (golden.VERSIONS if golden.IS_SOAK else [golden.VERSIONS[number % 3]])
]
"""Each in another version in turn; with ``make soak`` in all."""


@pytest.mark.parametrize(("version", "split"), EACH_SPLIT, ids=str)
@pytest.mark.sampled(3)
def test_any_partitions_give_each_row_once(version: str, split: dict[str, Any]) -> None:
    store = golden.unpack(version, "unclean" if "minPartitions" in split else "clean")
    whole = read_light(store)
    parts = read_light(store, **split)
    assert len(parts.tasks) > len(whole.tasks)
    assert len(parts.tasks) >= split.get("minPartitions", 1)
    assert [fields(row) for row in parts.rows] == [fields(row) for row in whole.rows]
    for topic in ("GoldenOne", "GoldenFour"):
        by_queue = read_light(store, topic=topic, scan="consumequeue", **split)
        wanted = [row["physical_offset"] for row in whole.rows if row["topic"] == topic]
        assert sorted(offsets(by_queue.rows)) == wanted


@TORN
@pytest.mark.sampled(6)
def test_any_partitions_report_damage_once(version: str, variant: str) -> None:
    store = golden.unpack(version, f"torn/{variant}")
    is_damaged = bool(reading.damaged(version, variant).runs)
    options = {"mode": "PERMISSIVE", "failOnDataLoss": variant != "cq-ahead"}
    whole = read_light(store, **options)
    assert bool(whole.damage) == is_damaged
    sizes = ("1000", "20001") if version == "4.9.7" else ("20001",)
    for size in sizes if is_damaged else sizes[-1:]:
        parts = read_light(store, maxBytesPerPartition=size, **options)
        assert parts.messages == whole.messages
        assert reading.runs(parts.damage) == reading.runs(whole.damage), size


def test_partitions_cut_beside_damage_report_it_once(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(70))
    path, start = built.log_file(1), built.log_file_bytes
    data = bytearray(path.read_bytes())
    bad = [message for message in built.messages if message.physical_offset >= start][2]
    position, size = bad.physical_offset - start, bad.store_size + 20
    data[position : position + size] = b"\xee" * size
    path.write_bytes(data)
    planner = reading.scan(built.root, mode="PERMISSIVE", columns="physical_offset,_corrupt_record")
    (task,) = planner.tasks()
    whole = rows_of(planner, [task])
    assert sum(note is not None for _, note in whole) == 1
    stop = task.partition.stop
    near = [bad.physical_offset, bad.physical_offset + size]
    around = [
        position + step for position in near for step in (*range(-40, 0, 7), *range(-3, 4), 50, 150)
    ]
    for middle in (*around, *range(1, stop, 331)):
        halves = [plan.LogRange(0, 0, middle, False), plan.LogRange(0, middle, stop, True)]
        rows = rows_of(planner, [replace(task, partition=half) for half in halves])
        assert sorted(rows, key=str) == sorted(whole, key=str), middle


def rows_of(planner: scan.MessageScan, tasks: list[scan.Task]) -> list[tuple[Any, ...]]:
    batches = [batch for task in tasks for batch in planner.read(task)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_no_partition_by_queue_has_more_records_than_allowed() -> None:
    got = read_light(
        clean("4.9.7"), topic="GoldenOne", scan="consumequeue", maxRecordsPerPartition=10
    )
    counts = [
        sum(part.count for part in task.partition.slices)
        for task in got.tasks
        if isinstance(task.partition, plan.QueueRange)
    ]
    assert max(counts) == 10
    assert sum(counts) == len(got.rows)


def test_no_partition_reads_more_log_than_allowed() -> None:
    got = read_light(clean("4.9.7"), maxBytesPerPartition="20k")
    ranges = [task.partition for task in got.tasks]
    assert all(isinstance(span, plan.LogRange) for span in ranges)
    assert max(span.byte_count for span in ranges) <= 20 * 1024
    assert sum(span.byte_count for span in ranges) == 663046


# --- filters ----------------------------------------------------------------


def keys_of(message: dict[str, Any]) -> list[str]:
    return [word for word in (message["keys"] or "").split(" ") if word]


@pytest.fixture(params=["index", "no-index", "newest", "oldest", "unclean"])
def keyed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Messages]:
    """Return a store whose index covers all, none or some of its messages."""
    version = "4.9.7"
    if request.param == "unclean":
        name = "unclean"
        return golden.unpack(version, name), reading.visible(golden.messages(version, name))
    messages = reading.visible(golden.messages(version, "clean"))
    if request.param == "index":
        return clean(version), messages
    if request.param == "no-index":
        return golden.unpack(version, "torn/no-index"), messages
    store = golden.copy_store(version, "clean", tmp_path)
    files = sorted((store / "index").iterdir())
    (files[-1] if request.param == "newest" else files[0]).unlink()
    return store, messages


@pytest.mark.sampled(4)
def test_filters_equal_the_filtered_full_scan(keyed: tuple[Path, Messages]) -> None:
    store, messages = keyed
    keys = Counter(key for message in messages for key in keys_of(message))
    tags = Counter(message["tags"] for message in messages if message["tags"])
    ids = [message["uniqKey"] for message in messages if message["uniqKey"]]
    some_keys = [*list(keys)[:3], list(keys)[-1], keys.most_common(1)[0][0]]
    for key in some_keys:
        wanted = [message["commitLogOffset"] for message in messages if key in keys_of(message)]
        assert sorted(offsets(read_light(store, key=key).rows)) == wanted, key
        assert sorted(offsets(read_light(store, key=key, scan="log").rows)) == wanted, key
    several = ",".join(key for key in some_keys if "," not in key)
    wanted = [
        message["commitLogOffset"]
        for message in messages
        if {*keys_of(message)} & {*several.split(",")}
    ]
    assert sorted(offsets(read_light(store, keyIn=several).rows)) == wanted
    for unique in (ids[0], ids[len(ids) // 2], ids[-1]):
        wanted = [
            message["commitLogOffset"] for message in messages if message["uniqKey"] == unique
        ]
        assert sorted(offsets(read_light(store, uniqKey=unique).rows)) == wanted
        got = read_light(store, from_values("msg_id", [unique, "nobody"]))
        assert sorted(offsets(got.rows)) == wanted
    wanted = [
        message["commitLogOffset"] for message in messages if message["tags"] in list(tags)[:2]
    ]
    assert offsets(read_light(store, tags=" || ".join(list(tags)[:2])).rows) == wanted
    assert not read(store, key="no such key").rows
    assert not read(store, uniqKey="no such id").rows
    both = messages[10]
    got = read_light(store, topic=both["topic"], uniqKey=both["uniqKey"])
    assert both["commitLogOffset"] in offsets(got.rows)


@VERSION
@pytest.mark.sampled(3)
def test_keys_of_every_message_are_found_through_the_index(version: str) -> None:
    messages = reading.visible(golden.messages(version, "clean"))
    places: dict[str, set[int]] = defaultdict(set)
    for message in messages:
        for key in keys_of(message):
            places[key].add(message["commitLogOffset"])
    rare = [
        key for key, offsets_of_key in places.items() if "," not in key and len(offsets_of_key) < 5
    ]
    for some in (rare[::12], rare[3::60]):
        got = read_light(clean(version), keyIn=",".join(some))
        assert offsets(got.rows) == sorted(set().union(*(places[key] for key in some)))
        assert any(isinstance(task.partition, plan.Points) for task in got.tasks)
        assert "index names" in got.summary
    unique = {message["uniqKey"] for message in messages[::25] if message["uniqKey"]}
    wanted = [message["commitLogOffset"] for message in messages if message["uniqKey"] in unique]
    got = read_light(clean(version), uniqKey=",".join(unique))
    assert sorted(offsets(got.rows)) == wanted


@VERSION
@pytest.mark.sampled(3)
def test_a_message_id_is_a_unique_key_or_an_offset_id(version: str) -> None:
    messages = reading.visible(golden.messages(version, "clean"))
    without = [message for message in messages if not message["uniqKey"]]
    every = messages[::97] + without[:5]
    for message in every:
        shown = message["uniqKey"] or message["offsetMsgId"]
        wanted = [
            m["commitLogOffset"] for m in messages if (m["uniqKey"] or m["offsetMsgId"]) == shown
        ]
        assert offsets(read_light(clean(version), from_values("msg_id", [shown])).rows) == wanted


def test_a_unique_key_in_the_form_of_an_offset_id_is_no_damage(tmp_path: Path) -> None:
    """Both have 32 digits: the key's digits usually point into the middle of a record."""
    host = store_builder.HOST
    keys = [message_id.encode_offset_id(replace(host, port=port), 150) for port in (1, 2)]
    messages = [
        store_builder.message("T", b"x" * 100, unique_key=keys[0]),
        store_builder.message("T", b"x" * 100),
    ]
    built = store_builder.build(tmp_path / "store", messages)
    got = read(built.root, from_values("msg_id", keys))
    assert offsets(got.rows) == [0]
    own = message_id.offset_id(built.messages[1])
    assert offsets(read(built.root, from_values("msg_id", [own])).rows) == offsets(
        read(built.root).rows[1:]
    )


def test_messages_of_a_deleted_topic_are_found_by_key(tmp_path: Path) -> None:
    """The index has keys by topic, and no table names the topic any more."""
    built = store_builder.build(tmp_path / "store", store_builder.messages(60))
    shutil.rmtree(built.root / "consumequeue" / "TopicB")
    table = built.root / "config" / "topics.json"
    topics = json.loads(table.read_text())
    del topics["topicConfigTable"]["TopicB"]
    table.write_text(json.dumps(topics))
    for number in (0, 1, 40, 41):
        got = read_light(built.root, key=f"key-{number}")
        assert offsets(got.rows) == [built.messages[number].physical_offset]
    shutil.rmtree(built.root / "config")
    shutil.rmtree(built.root / "consumequeue")
    got = read_light(built.root, key="key-40")
    assert offsets(got.rows) == [built.messages[40].physical_offset]


def test_a_wrong_index_costs_a_scan_but_no_row(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(60), slots=4)
    path = built.index_file(0)
    data = bytearray(path.read_bytes())
    data[40 : 40 + 16] = struct.pack(">4i", 99999, 99999, 99999, 99999)
    path.write_bytes(data)
    got = read_light(built.root, key="key-3")
    assert offsets(got.rows) == [built.messages[3].physical_offset]
    assert "index not used" in got.summary


def test_index_entries_of_missing_records_are_no_damage(tmp_path: Path) -> None:
    """A recovery cut the log; records written later have other bounds (README of golden)."""
    old = [store_builder.message("T", b"o" * n, keys=f"old{n}") for n in (10, 30, 50, 70)]
    new = [store_builder.message("T", b"n" * n, keys=f"new{n}") for n in (20, 45, 5, 60, 11)]
    before = store_builder.build(tmp_path / "before", old)
    after = store_builder.build(tmp_path / "after", new)
    shutil.rmtree(after.root / "index")
    shutil.copytree(before.root / "index", after.root / "index")
    for n in (10, 30, 50, 70):
        assert not read(after.root, key=f"old{n}", topic="T").rows


@VERSION
def test_sql92(version: str) -> None:
    store, messages = clean(version), reading.visible(golden.messages(version, "clean"))
    got = read_light(store, sql92="TAGS = 'TagA' OR KEYS IS NULL")
    wanted = [
        message["commitLogOffset"]
        for message in messages
        if message["tags"] == "TagA" or "KEYS" not in message["properties"]
    ]
    assert offsets(got.rows) == wanted
    by_queue = read_light(store, sql92="TAGS = 'TagA'", topic="GoldenFour", scan="consumequeue")
    assert sorted(offsets(by_queue.rows)) == chosen(
        version,
        "clean",
        lambda message: (message["topic"], message["tags"]) == ("GoldenFour", "TagA"),
    )
    with pytest.raises(
        InvalidOption, match="option 'sql92' is 'a >'; allowed: a filter expression"
    ):
        read(store, sql92="a >")


def test_ignored_parts_of_an_expression_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    got = read_light(clean("4.9.7"), sql92="TAGS = 'TagA' LIKE 'b'")
    assert offsets(got.rows) == offsets(read_light(clean("4.9.7"), sql92="TAGS = 'TagA'").rows)
    (warning,) = [
        record.getMessage() for record in caplog.records if "ignores" in record.getMessage()
    ]
    assert warning == (
        """SQL92 expression "TAGS = 'TagA' LIKE 'b'" means "TAGS = 'TagA'": RocketMQ ignores """
        """what follows, "LIKE 'b'\""""
    )


def test_constraints_equal_the_filtered_full_scan() -> None:
    store = clean("4.9.7")
    every = read_light(store).rows
    middle = every[len(every) // 2]
    low_us, high_us = (
        int((row["store_timestamp"] - reading.EPOCH).total_seconds() * 1000) * 1000
        for row in (every[100], middle)
    )
    for constraint, wants in [
        (from_values("topic", ["GoldenOne", "nobody"]), lambda row: row["topic"] == "GoldenOne"),
        (from_values("queue_id", [1, 3]), lambda row: row["queue_id"] in (1, 3)),
        (from_values("tags", ["TagA"]), lambda row: row["tags"] == "TagA"),
        (from_span("queue_offset", 3, 5), lambda row: 3 <= row["queue_offset"] <= 5),
        (
            from_span("physical_offset", middle["physical_offset"], None),
            lambda row: row["physical_offset"] >= middle["physical_offset"],
        ),
        (
            from_span("store_timestamp", low_us, high_us),
            lambda row: (
                every[100]["store_timestamp"] <= row["store_timestamp"] <= middle["store_timestamp"]
            ),
        ),
        (
            from_span("store_timestamp", low_us + 1, high_us - 1),
            lambda row: (
                every[100]["store_timestamp"] < row["store_timestamp"] < middle["store_timestamp"]
            ),
        ),
    ]:
        assert constraint is not None
        wanted = [row["physical_offset"] for row in every if wants(row)]
        assert wanted
        for how in ("auto", "log", "consumequeue"):
            got = read_light(store, constraint, scan=how)
            assert sorted(offsets(got.rows)) == wanted, (constraint, how)
    nothing = from_values("topic", ["GoldenOne"]).meet(from_values("topic", ["GoldenFour"]))
    assert read(store, nothing).tasks == []


def test_predicates_on_store_times_skip_log_files(tmp_path: Path) -> None:
    messages = [
        store_builder.message("T", b"x" * 900, store_timestamp=store_builder.START_MS + i * 60_000)
        for i in range(40)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    time_us = built.messages[20].store_timestamp * 1000
    got = read_light(built.root, from_span("store_timestamp", time_us, time_us))
    assert offsets(got.rows) == [built.messages[20].physical_offset]
    assert "store time skips 8 of 10 log files" in got.summary or "skips 9" in got.summary
    by_queue = read_light(
        built.root, from_span("store_timestamp", time_us, time_us), topic="T", scan="consumequeue"
    )
    assert offsets(by_queue.rows) == [built.messages[20].physical_offset]


# --- modes ------------------------------------------------------------------


@TORN
@pytest.mark.sampled(3)
def test_modes(version: str, variant: str) -> None:
    store, left = golden.unpack(version, f"torn/{variant}"), reading.damaged(version, variant)
    options = {"readIsolation": ALL, "failOnDataLoss": variant != "cq-ahead"}
    good = [reading.row_of(message) for message in left.good]

    permissive = read(store, mode="PERMISSIVE", **options)
    for row in permissive.messages:
        assert row.pop("_corrupt_record") is None
    assert [reading.comparable(version, row) for row in permissive.messages] == good
    assert reading.runs(permissive.damage) == left.runs
    for row in permissive.damage:
        known = {"physical_offset", "store_size", "_corrupt_record", "broker"}
        assert all(value is None for name, value in row.items() if name not in known)

    dropped = read_light(store, mode="DROPMALFORMED", **options)
    assert offsets(dropped.rows) == message_offsets(left.good)
    assert "_corrupt_record" not in dropped.rows[0]

    if left.runs:
        with pytest.raises(CorruptRecord) as error:
            read_light(store, mode="FAILFAST", **options)
        offset, _, reason = left.runs[0]
        file_bytes = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        file = store / "commitlog" / f"{offset - offset % file_bytes:020d}"
        text = str(error.value)
        assert text.startswith(f"{file}, physical offset {offset}, ")
        assert text.endswith(f" bytes: {reason}")
    else:
        failfast = read_light(store, mode="FAILFAST", **options)
        assert offsets(failfast.rows) == message_offsets(left.good)

    salvage = read_light(store, mode="SALVAGE", **options)
    whole = sorted([*message_offsets(left.good), *message_offsets(left.salvaged)])
    assert offsets(salvage.messages) == whole
    noted = {
        r["physical_offset"]: r["_corrupt_record"] for r in salvage.messages if r["_corrupt_record"]
    }
    assert noted == {message["commitLogOffset"]: reading.CRC_REASON for message in left.salvaged}
    assert reading.runs(salvage.damage) == ([] if left.salvaged else left.runs)


@VERSION
@pytest.mark.sampled(3)
def test_a_salvaged_record_is_complete_with_every_kind_of_scan(version: str) -> None:
    store = golden.unpack(version, "torn/crc-early")
    (bad,) = reading.damaged(version, "crc-early").salvaged
    wanted = {k: v for k, v in reading.row_of(bad).items() if k not in ("body", "properties")}
    ways: list[dict[str, Any]] = [
        {},
        {"topic": bad["topic"], "scan": "consumequeue"},
        {"topic": bad["topic"], "scan": "log"},
        {"uniqKey": bad["uniqKey"]},
        {"uniqKey": bad["uniqKey"], "topic": bad["topic"]},
        {"minPartitions": 100},
    ]
    for options in ways:
        got = read(
            store,
            mode="SALVAGE",
            includeBody=False,
            includeHeaders=False,
            readIsolation=ALL,
            **options,
        )
        (row,) = [row for row in got.rows if row["_corrupt_record"] is not None]
        assert row == {**wanted, "_corrupt_record": reading.CRC_REASON}, options
        with pytest.raises(CorruptRecord, match=reading.CRC_REASON):
            read(store, mode="FAILFAST", **options)
        got = read(store, checkCrc=False, readIsolation=ALL, **options)
        assert bad["commitLogOffset"] in offsets(got.rows)
        assert "_corrupt_record" not in got.rows[0]


def test_stale_records_after_the_end_of_the_log(tmp_path: Path) -> None:
    """A recovery cut the log and left the bytes: only salvage reads them."""
    messages = store_builder.messages(30)
    built = store_builder.build(tmp_path / "store", messages)
    kept = store_builder.build(tmp_path / "kept", messages[:20])
    cut = built.messages[20]
    path = built.log_file(cut.physical_offset // built.log_file_bytes)
    data = bytearray(path.read_bytes())
    position = cut.physical_offset % built.log_file_bytes
    data[position : position + 8] = b"\xff" * 8  # the first of them is unreadable
    path.write_bytes(data)
    for name in ("consumequeue", "index", "checkpoint"):
        target = built.root / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        source = kept.root / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    everything = [message.physical_offset for message in built.messages]
    for mode in MODES[:3]:
        assert offsets(read_light(built.root, mode=mode).rows) == everything[:20]
    got = read_light(built.root, mode="SALVAGE")
    assert offsets(got.messages) == everything[:20] + everything[21:]
    stale = [row for row in got.rows if row["_corrupt_record"]]
    assert offsets(stale) == everything[21:]
    assert {row["_corrupt_record"] for row in stale} == {
        "after the end of the log: truncated by a recovery"
    }
    assert "stale bytes after the end of the log" in got.summary


def test_damage_outside_the_range_read_is_ignored() -> None:
    store = golden.unpack("4.9.7", "torn/size-late")
    (run,) = reading.damaged("4.9.7", "size-late").runs
    assert read_light(store, endingPhysicalOffset=run[0]).rows
    assert read_light(store, startingPhysicalOffset=run[0] + 1).rows
    with pytest.raises(CorruptRecord):
        read_light(store, endingPhysicalOffset=run[0] + 1)
    got = read_light(store, mode="PERMISSIVE", endingPhysicalOffset=run[0])
    assert not got.damage


def test_damage_and_predicates() -> None:
    """A row of damage has only its place; a predicate on another column excludes it."""
    store = golden.unpack("4.9.7", "torn/size-late")
    (run,) = reading.damaged("4.9.7", "size-late").runs
    for constraint, is_shown in [
        (from_span("physical_offset", None, run[0]), True),
        (from_span("physical_offset", 0, None), True),
        (Constraint(not_null=frozenset({"store_size"})), True),
        (from_span("physical_offset", run[0] + 1, None), False),
        (from_values("topic", ["GoldenOne"]), False),
        (Constraint(not_null=frozenset({"msg_id"})), False),
        (from_span("store_timestamp", 0, None), False),
    ]:
        got = read_light(store, constraint, mode="PERMISSIVE", scan="log")
        assert bool(got.damage) == is_shown, constraint
    for options in ({"tags": "TagA"}, {"key": "k"}, {"sql92": "a = 1"}, {"startingTimestamp": 0}):
        assert not read_light(store, mode="PERMISSIVE", scan="log", **options).damage
    assert read_light(store, mode="PERMISSIVE", scan="log", topic="GoldenOne").damage


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_cannot_be_decompressed(tmp_path: Path, mode: str) -> None:
    messages = [
        store_builder.message("T", b"plain"),
        store_builder.message("T", b"no zlib at all", sys_flag=flags.COMPRESSED),
        store_builder.message("T", b"plain too"),
    ]
    built = store_builder.build(tmp_path / "store", messages)
    bad = built.messages[1].physical_offset
    if mode == "FAILFAST":
        with pytest.raises(CorruptRecord, match="body is not zlib") as error:
            read(built.root, mode=mode)
        assert error.value.physical_offset == bad
        assert error.value.file == str(built.log_file(0))
    else:
        got = read(built.root, mode=mode)
        shown = [] if mode == "DROPMALFORMED" else [b"no zlib at all"]
        assert [row["body"] for row in got.rows] == [b"plain", *shown, b"plain too"]
        notes = [row.get("_corrupt_record") for row in got.rows]
        assert sum(note is not None for note in notes) == len(shown)
        if shown:
            assert "body is not zlib" in str(notes[1])
    for options in ({"decompress": "none"}, {"includeBody": False}, {"columns": "topic,queue_id"}):
        assert len(read_light(built.root, mode=mode).rows) == 3
        read_options = {"mode": mode, **options}
        assert len(scan_rows(built.root, **read_options)) == 3


def scan_rows(store: Path, **options: Any) -> list[dict[str, Any]]:
    """Return all rows, also those without msg_id."""
    planner = reading.scan(store, **options)
    return [row for task in planner.tasks() for b in planner.read(task) for row in b.to_pylist()]


@pytest.mark.parametrize("table", ["topics.json", "consumerOffset.json"])
def test_a_damaged_table_does_not_prevent_reads_of_the_log(tmp_path: Path, table: str) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    for path in (store / "config").glob(f"{table}*"):
        path.write_text("{ not json")
    everything = len(reading.visible(golden.messages("4.9.7", "clean")))
    if table == "topics.json":
        with pytest.raises(CorruptRecord, match=r"config/topics\.json"):
            read(store)
    else:
        with pytest.raises(CorruptRecord, match=r"config/consumerOffset\.json"):
            read(store, startingOffsets="group:CG_Offsets", mode="PERMISSIVE")
    got = read_light(store, mode="PERMISSIVE")
    assert len(got.rows) == everything
    assert read_light(store, mode="SALVAGE", topic="GoldenOne").rows


# --- columns and bodies -----------------------------------------------------


def test_bodies_are_left_compressed_if_configured() -> None:
    for version in golden.VERSIONS:
        messages = reading.visible(golden.messages(version, "clean"))
        packed = [message for message in messages if message["sysFlag"] & flags.COMPRESSED]
        assert packed
        stored = read(clean(version), decompress="none", columns="physical_offset,body,msg_id").rows
        by_offset = {row["physical_offset"]: row["body"] for row in stored}
        for message in packed:
            body = by_offset[message["commitLogOffset"]]
            digest = reading.hashlib.sha256(body).hexdigest()
            assert (len(body), digest) == (message["storedBodyLength"], message["storedBodySha256"])


def test_large_decompressed_bodies_come_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zlib

    monkeypatch.setattr(portions, "_PACKED_BYTES_A_BATCH", 1000)
    messages = [
        store_builder.message(
            "T", zlib.compress(bytes(30_000)) if i % 2 else b"x" * 100, sys_flag=i % 2
        )
        for i in range(60)
    ]
    built = store_builder.build(tmp_path / "store", messages, log_file_bytes=1 << 20)
    planner = reading.scan(built.root)
    batches = [batch for task in planner.tasks() for batch in planner.read(task)]
    assert len(batches) > 3
    assert max(batch.nbytes for batch in batches) < 400_000
    assert [row["queue_offset"] for b in batches for row in b.to_pylist()] == list(range(60))


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "gb18030"])
def test_a_charset_decodes_the_body(tmp_path: Path, charset: str) -> None:
    text = "Grüße" if charset != "gb18030" else "客户"
    built = store_builder.build(
        tmp_path / "store",
        [
            store_builder.message("T", text.encode(charset)),
            store_builder.message("T", b"\xff\xfe\x81"),
        ],
    )
    got = read(built.root, charset=charset)
    assert got.rows[0]["body"] == text
    assert isinstance(got.rows[1]["body"], str)


def test_original_topics_of_delayed_and_half_messages() -> None:
    for version in golden.VERSIONS:
        messages = golden.messages(version, "clean")
        got = read(clean(version), resolveTopics=True, readIsolation=ALL, includeBody=False)
        for row, message in zip(got.rows, messages, strict=True):
            properties = message["properties"]
            assert row["topic"] == properties.get("REAL_TOPIC", message["topic"])
            assert row["queue_id"] == int(properties.get("REAL_QID", message["queueId"]))
        assert any("REAL_TOPIC" in message["properties"] for message in messages)


def test_columns_have_the_requested_order() -> None:
    got = read(clean("4.9.7"), columns="msg_id, tags ,physical_offset")
    assert list(got.rows[0]) == ["msg_id", "tags", "physical_offset"]
    whole = read_light(clean("4.9.7"))
    assert [row["tags"] for row in got.rows] == [row["tags"] for row in whole.rows]


def test_a_read_of_a_topic_reads_a_part_of_the_log() -> None:
    got = read_light(clean("4.9.7"), topic="GoldenBatch")
    assert "consume queues, about" in got.summary
    assert "log scan of 0 bytes" in got.summary


def test_errors_are_reput_errors() -> None:
    """ReputError covers all errors raised deliberately."""
    for kind in (DataLoss, CorruptRecord, InvalidOption, StoreUnavailable):
        assert issubclass(kind, ReputError)


# --- counts -----------------------------------------------------------------


@STORE
def test_counts_of_queues_are_those_of_the_manifest(version: str, name: str) -> None:
    counts = reading.scan(golden.unpack(version, name)).counts()
    messages = reading.visible(golden.messages(version, name))
    want = Counter((message["topic"], message["queueId"]) for message in messages)
    assert counts is None or {(t, q): rows for _, t, q, rows in counts if rows} == want


@TORN
@pytest.mark.sampled(5)
def test_counts_of_a_damaged_store_are_those_of_a_scan(version: str, variant: str) -> None:
    """Where a scan fails, damage would need a look at the messages."""
    store = golden.unpack(version, f"torn/{variant}")
    try:
        counts = reading.scan(store, failOnDataLoss=False).counts()
        rows = read_light(store, failOnDataLoss=False, scan="log").rows
    except CorruptRecord:
        return
    want = Counter((row["topic"], row["queue_id"]) for row in rows)
    assert counts is None or {(t, q): number for _, t, q, number in counts if number} == want


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "GoldenOne,GoldenFour"},
        {"topic": "GoldenOne", "endingOffsets": {"GoldenOne": {reading.BROKER: {"0": 3}}}},
        {"subscribePattern": "Golden.*"},
    ],
)
def test_counts_of_selected_queues(options: dict[str, Any]) -> None:
    store = golden.unpack("4.9.7", "clean")
    rows = read_light(store, **options).rows
    want = Counter((row["topic"], row["queue_id"]) for row in rows)
    counts = reading.scan(store, **options).counts()
    assert counts is not None
    assert {(topic, queue): number for _, topic, queue, number in counts if number} == want != {}


@pytest.mark.parametrize(
    "options",
    [
        *({"mode": "PERMISSIVE"}, {"scan": "log"}, {"readIsolation": "all"}, {"tags": "TagA"}),
        *({"startingPhysicalOffset": 5}, {"key": "x"}, {"sql92": "a = 1"}, {"resolveTopics": True}),
    ],
)
def test_other_conditions_need_a_read_to_count(options: dict[str, Any]) -> None:
    assert reading.scan(golden.unpack("4.9.7", "clean"), **options).counts() is None
