"""Options of reads: accepted values, refusals, and their texts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from reput.errors import InvalidOption
from reput.format.signing import Credentials
from reput.secret import Secret
from reput.spark import option_table, options
from reput.spark.importing import options as import_options
from reput.spark.option_kinds import EARLIEST, LATEST
from reput.spark.options import Bound, LiveOptions, ReadOptions, TriggerLimits

PATH = {"path": "/store"}
BROKERS = {"nameServer": "ns:9876"}
STORE_ONLY = [
    option.name
    for option in option_table.OPTIONS
    if option.uses & option_table.READS and not option.sources & option_table.Source.BROKERS
]
STORE_ONLY = [
    name for name in STORE_ONLY if name not in ("broker", "mode", "scan", "view")
]  # these are in two rows of the table
QUEUES = {"T": {"b": {"0": 23}}}


def parse(**given: Any) -> ReadOptions:
    return options.parse({**PATH, **{name: str(value) for name, value in given.items()}})


def refuse(**given: Any) -> InvalidOption:
    with pytest.raises(InvalidOption) as error:
        parse(**given)
    return error.value


def test_defaults() -> None:
    assert parse() == ReadOptions(paths=("/store",))
    assert not parse().selects_topics
    assert parse().start.is_whole
    assert parse().end.is_whole


ACCEPTED: list[tuple[str, str, str, Any]] = [
    ("allowLive", "true", "allow_live", True),
    ("topic", "a", "topics", frozenset({"a"})),
    ("topics", "a, b", "topics", frozenset({"a", "b"})),
    ("subscribe", "a,b,,", "topics", frozenset({"a", "b"})),
    ("subscribePattern", "a.*", "topic_pattern", "a.*"),
    ("assign", '{"T": {"b": [0, 2]}}', "assign", {"T": {"b": (0, 2)}}),
    ("assign", '{"T": {"b": ["1"]}}', "assign", {"T": {"b": (1,)}}),
    ("startingOffsets", "earliest", "start", Bound("earliest")),
    ("startingOffsets", "EARLIEST", "start", Bound("earliest")),
    ("startingOffsets", "group:g", "start", Bound("earliest", group="g")),
    (
        "startingOffsets",
        json.dumps(QUEUES),
        "start",
        Bound("earliest", offsets={"T": {"b": {0: 23}}}),
    ),
    (
        "startingOffsets",
        '{"T": {"b": {"0": -2}}}',
        "start",
        Bound("earliest", offsets={"T": {"b": {0: EARLIEST}}}),
    ),
    ("endingOffsets", "latest", "end", Bound("latest")),
    ("endingOffsets", "group:a:b", "end", Bound("latest", group="a:b")),
    (
        "endingOffsets",
        '{"T": {"b": {"0": -1}}}',
        "end",
        Bound("latest", offsets={"T": {"b": {0: LATEST}}}),
    ),
    ("startingTimestamp", "5", "start", Bound("earliest", timestamp_ms=5)),
    ("endingTimestamp", "5", "end", Bound("latest", timestamp_ms=5)),
    (
        "startingOffsetsByTimestamp",
        json.dumps(QUEUES),
        "start",
        Bound("earliest", timestamps={"T": {"b": {0: 23}}}),
    ),
    (
        "endingOffsetsByTimestamp",
        json.dumps(QUEUES),
        "end",
        Bound("latest", timestamps={"T": {"b": {0: 23}}}),
    ),
    ("startingOffsetsByTimestampStrategy", "Latest", "late_timestamp", "latest"),
    ("startingPhysicalOffset", "0", "start_physical_offset", 0),
    ("endingPhysicalOffset", str((1 << 63) - 1), "end_physical_offset", (1 << 63) - 1),
    ("minPartitions", "1", "min_partitions", 1),
    ("maxRecordsPerPartition", "1", "max_records_per_partition", 1),
    ("maxBytesPerPartition", "1000", "max_bytes_per_partition", 1000),
    ("maxBytesPerPartition", "64k", "max_bytes_per_partition", 65536),
    ("maxBytesPerPartition", "128 MB", "max_bytes_per_partition", 1 << 27),
    ("maxBytesPerPartition", "1g", "max_bytes_per_partition", 1 << 30),
    ("maxBytesPerPartition", "1T", "max_bytes_per_partition", 1 << 40),
    ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
    ("includeHeaders", "false", "include_headers", False),
    ("rawProperties", "true", "raw_properties", True),
    ("tags", "A", "tags", frozenset({"A"})),
    ("tags", "A||B || C", "tags", frozenset({"A", "B", "C"})),
    ("tags", "*", "tags", None),
    ("sql92", "a > 5", "sql92", "a > 5"),
    ("key", "a,b", "keys", frozenset({"a,b"})),
    ("keyIn", "a,b", "keys", frozenset({"a", "b"})),
    ("uniqKey", "a,b", "unique_keys", frozenset({"a", "b"})),
    ("includeBody", "false", "include_body", False),
    ("columns", "topic, body", "columns", ("topic", "body")),
    ("decompress", "NONE", "decompress", False),
    ("decompress", "auto", "decompress", True),
    ("charset", "gb18030", "charset", "gb18030"),
    ("readIsolation", "Half", "isolation", "half"),
    ("readIsolation", "all", "isolation", "all"),
    ("includeSystemTopics", "false", "include_system_topics", False),
    ("includeRetry", "false", "include_retry", False),
    ("includeDlq", "false", "include_dlq", False),
    ("resolveTopics", "true", "resolve_topics", True),
    ("mode", "dropmalformed", "mode", "DROPMALFORMED"),
    ("checkCrc", "false", "check_crc", False),
    ("view", "ConsumeQueue", "view", "consumequeue"),
    ("scan", "LOG", "scan", "log"),
    ("broker", "broker-a", "broker", "broker-a"),
    ("startingOffsets", "latest", "start", Bound("latest")),
    ("maxOffsetsPerTrigger", "5", "trigger", TriggerLimits(max_offsets=5)),
    ("maxBytesPerTrigger", "64m", "trigger", TriggerLimits(max_bytes=64 << 20)),
    ("minOffsetsPerTrigger", "7", "trigger", TriggerLimits(min_offsets=7)),
    ("maxTriggerDelay", "250ms", "trigger", TriggerLimits(max_delay_ms=250)),
    ("maxTriggerDelay", "30 S", "trigger", TriggerLimits(max_delay_ms=30_000)),
    ("maxTriggerDelay", "2h", "trigger", TriggerLimits(max_delay_ms=7_200_000)),
]


def test_accepted() -> None:
    for name, text, member, value in ACCEPTED:
        for written in (name, name.lower(), name.upper()):
            assert getattr(parse(**{written: f" {text} "}), member) == value, (written, text)
        if value != getattr(ReadOptions(("/store",)), member):
            others = {"paths": ("/store",), member: value}
            assert parse(**{name: text}) == ReadOptions(**others), (name, text)


REFUSED = [
    ("allowLive", "yes", "true or false"),
    ("topic", ",", "names separated by ','"),
    ("subscribePattern", "(", "a regular expression"),
    *(("assign", text, 'JSON {"topic": {"broker": [queue id') for text in ("x", "[]", '{"T": 1}')),
    ("assign", '{"T": {"b": 1}}', 'JSON {"topic": {"broker": [queue id'),
    ("assign", '{"T": {"b": [-1]}}', "JSON"),
    ("assign", '{"T": {"b": [true]}}', "JSON"),
    ("assign", '{"T": {"b": [1.5]}}', "JSON"),
    ("startingOffsets", "group:", "group:NAME"),
    ("startingOffsets", "12", "earliest, latest, group:NAME or JSON"),
    ("startingOffsets", '{"T": {"b": {"0": -3}}}', "JSON"),
    ("startingOffsets", '{"T": {"b": {"x": 1}}}', "JSON"),
    ("startingOffsets", '{"T": {"b": 1}}', "JSON"),
    ("startingOffsets", '{"T"', "JSON"),
    ("endingOffsets", "earliest", "latest, group:NAME or JSON"),
    ("endingOffsets", '{"T": {"b": {"0": -2}}}', "offsets from 0, or -1 for latest"),
    ("startingTimestamp", "-1", "milliseconds since the epoch"),
    ("endingTimestamp", "2024-01-01", "milliseconds since the epoch"),
    ("startingOffsetsByTimestamp", "5", "JSON"),
    ("startingOffsetsByTimestamp", '{"T": {"b": {"0": -2}}}', "JSON"),
    ("endingOffsetsByTimestamp", '{"T": {"b": {"0": -1}}}', "JSON"),
    ("startingOffsetsByTimestampStrategy", "earliest", "error, latest"),
    ("startingPhysicalOffset", "1.5", "a whole number from 0"),
    ("endingPhysicalOffset", str(1 << 63), "a whole number from 0"),
    ("minPartitions", "0", "a whole number from 1"),
    ("maxOffsetsPerTrigger", "0", "a whole number from 1"),
    ("minOffsetsPerTrigger", "-1", "a whole number from 1"),
    ("maxBytesPerTrigger", "0", "a size such as"),
    *(("maxTriggerDelay", text, "a duration such as") for text in ("5", "1.5s", "-1s", "")),
    ("maxRecordsPerPartition", "0", "a whole number from 1"),
    *(("maxBytesPerPartition", text, "a size such as") for text in ("0", "-1", "1.5g", "x", "")),
    ("tags", "||", "TagA, TagA || TagB, or *"),
    ("keyIn", "", "names separated by ','"),
    ("uniqKey", ",,", "names separated by ','"),
    ("decompress", "gzip", "auto, none"),
    ("charset", "klingon", "a character set Python knows"),
    ("charset", "hex", "a character set Python knows"),
    ("charset", "a\0", "a character set Python knows"),
    ("readIsolation", "dirty", "committed, half, all"),
    ("mode", "LENIENT", "PERMISSIVE, DROPMALFORMED, FAILFAST, SALVAGE"),
    ("view", "message", "messages, consumequeue, index, files, gaps, offsets, topics, checkpoint"),
    ("view", "delay", "messages, with topic=SCHEDULE_TOPIC_XXXX"),
    ("view", "half", "messages, with topic=RMQ_SYS_TRANS_HALF_TOPIC"),
    ("view", "DLQ", "messages, with subscribePattern=%DLQ%.*"),
    ("scan", "fast", "auto, log, consumequeue"),
    *((name, "1", "true or false") for name in ("includeBody", "includeHeaders", "checkCrc")),
    *((name, "", "true or false") for name in ("includeRetry", "includeDlq", "resolveTopics")),
    *((name, "no", "true or false") for name in ("includeSystemTopics", "rawProperties")),
    ("failOnDataLoss", "0", "true or false"),
]


def test_refusals_have_name_value_and_allowed_values() -> None:
    for name, text, allowed in REFUSED:
        error = refuse(**{name: text})
        assert (error.name, error.value) == (name, text.strip())
        assert error.allowed.startswith(allowed), (name, text)
        assert str(error) == f"option {name!r} is {text.strip()!r}; allowed: {error.allowed}"
    for low, high in (
        ("startingTimestamp", "endingTimestamp"),
        ("startingPhysicalOffset", "endingPhysicalOffset"),
    ):
        assert parse(**{low: 5, high: 5})
        error = refuse(**{low: 5, high: 4})
        assert str(error) == f"option {high!r} is 4; allowed: at least the start, 5"


def test_an_unknown_name_is_refused() -> None:
    error = refuse(topik="a")
    assert (error.name, error.value) == ("topik", "a")
    names, _, question = error.allowed.partition("; ")
    assert question == "did you mean 'topic'?"
    known = names.removeprefix("one of ").split(", ")
    assert known == sorted(known, key=str.lower)
    assert {name for name, *_ in ACCEPTED} | {"path", "paths"} <= {*known}


def test_paths() -> None:
    assert options.parse({"path": " /a , /b,"}).paths == ("/a", "/b")
    assert options.parse({"paths": '["/a,b", "s3://c"]'}).paths == ("/a,b", "s3://c")
    for given in ({}, {"path": ""}, {"path": " , "}):
        with pytest.raises(InvalidOption, match=r"option 'path' is .*; allowed: the store folder"):
            options.parse(given)
    for text in ("[]", "x", "{}", "[1]"):
        with pytest.raises(InvalidOption, match=r"option 'paths' is .*; allowed: a JSON array"):
            options.parse({"paths": text})
    with pytest.raises(InvalidOption, match="without path"):
        options.parse({"path": "/a", "paths": '["/b"]'})


def test_topics_are_named_one_way_only() -> None:
    ways = {"topic": "a", "subscribePattern": "b", "assign": '{"a": {"b": [0]}}'}
    for names in (["topic", "subscribePattern"], ["topic", "assign"], [*ways][1:], [*ways]):
        error = refuse(**{name: ways[name] for name in names})
        assert error.value == " and ".join(ways[name] for name in names)
        assert all(name in error.allowed for name in ways)
    error = refuse(topic="a", subscribe="b")
    assert (error.name, error.value) == ("subscribe", "b")
    assert error.allowed == "one of topic, topics, subscribe, not topic and subscribe"
    assert refuse(key="a", keyIn="b").allowed == "key or keyIn, not both"


def test_selections_of_messages_are_refused_for_other_views() -> None:
    for given in (
        *({"key": "a"}, {"uniqKey": "a"}, {"tags": "a"}, {"sql92": "a = 1"}),
        *({"startingTimestamp": 1}, {"endingOffsets": "group:g"}, {"startingPhysicalOffset": 0}),
    ):
        error = refuse(view="files", **given)
        assert (error.name, error.value) == ("view", "files")
        assert error.allowed.startswith("messages, together with")
    assert parse(view="topics", topic="a", mode="PERMISSIVE").view == "topics"


def test_the_column_of_corrupt_records() -> None:
    for mode in (None, "PERMISSIVE", "SALVAGE", "FAILFAST", "DROPMALFORMED"):
        given = {} if mode is None else {"mode": mode}
        is_shown = mode in ("PERMISSIVE", "SALVAGE")
        assert parse(**given).corrupt_column == ("_corrupt_record" if is_shown else None)
        named = parse(columnNameOfCorruptRecord="bad", **given)
        assert named.corrupt_column == ("bad" if is_shown else None)


def test_options_by_broker() -> None:
    parsed = parse(
        assign='{"T": {"a": [0]}}',
        startingOffsets=json.dumps(QUEUES),
        endingOffsetsByTimestamp=json.dumps(QUEUES),
    )
    tables = {name: table for name, table in parsed.by_broker() if table}
    assert tables == {
        "assign": {"T": {"a": (0,)}},
        "startingOffsets": {"T": {"b": {0: 23}}},
        "endingOffsetsByTimestamp": {"T": {"b": {0: 23}}},
    }


# --- brokers ----------------------------------------------------------------


def parse_live(**given: Any) -> ReadOptions:
    texts = {name.replace("__", "."): str(value) for name, value in given.items()}
    return options.parse({**BROKERS, **texts})


def refuse_live(**given: Any) -> InvalidOption:
    with pytest.raises(InvalidOption) as error:
        parse_live(**given)
    return error.value


def live_of(**given: Any) -> LiveOptions:
    live = parse_live(**given).live
    assert live is not None
    return live


ACCEPTED_WITH_BROKERS: list[tuple[str, str, str, Any]] = [
    ("cluster", "c", "cluster", "c"),
    ("broker", "a, b", "brokers", frozenset({"a", "b"})),
    ("consumerGroup", "g", "consumer_group", "g"),
    ("pullBatchSize", "1000", "pull_batch_size", 1000),
    ("pullTimeoutMs", "1", "pull_timeout_ms", 1),
    ("fetchOffset__numRetries", "0", "retry_count", 0),
    ("fetchOffset__retryIntervalMs", "0", "retry_interval_ms", 0),
    ("group", "g", "group", "g"),
    ("commitOffsets", "oncommit", "commit_offsets", "onCommit"),
    ("discoveryIntervalMs", "5", "discovery_interval_ms", 5),
]


def test_brokers_instead_of_a_folder() -> None:
    assert parse_live() == ReadOptions((), live=LiveOptions("ns:9876"))
    assert parse_live(view="messages", mode="failfast").live is not None
    assert options.parse({"rocketmq.namesrv.addr": "a; b,c:1"}).live == LiveOptions("a;b;c:1")
    for name, text, member, value in ACCEPTED_WITH_BROKERS:
        assert live_of(**{name: text}) == replace(LiveOptions("ns:9876"), **{member: value})
        assert parse_live(**{name: text}).broker == ""
        if name != "broker":
            error = refuse(**{name.replace("__", "."): text})
            assert error.allowed == "left out, unless nameServer is set"
    for name, text, allowed in REFUSED_WITH_BROKERS:
        error = refuse_live(**{name: text})
        assert error.name == name.replace("__", ".")
        assert allowed in error.allowed, (name, text)


REFUSED_WITH_BROKERS = [
    ("nameServer", ";", "host:port, several separated by ;"),
    *((name, "1", "left out, where nameServer is set") for name in STORE_ONLY),
    ("mode", "SALVAGE", "FAILFAST, where nameServer is set"),
    *(
        ("view", view, "messages, offsets, topics, where nameServer is set")
        for view in ("files", "gaps", "index", "checkpoint", "consumequeue")
    ),
    ("view", "dlq", "messages, with subscribePattern"),
    ("pullBatchSize", "0", "a whole number from 1"),
    ("pullBatchSize", "65537", "a whole number from 1 to 65536"),
    ("fetchOffset__numRetries", "-1", "a whole number from 0"),
    ("commitOffsets", "always", "none, onCommit"),
    ("namespace", "a%b", "1 to 125 characters of a-z A-Z 0-9 _ - |"),
    ("namespace", "n" * 126, "1 to 125 characters"),
    ("vipChannel", "true", "the port of name servers' routes"),
    ("tls__enable", "1", "true or false"),
]


def test_secrets_are_never_shown() -> None:
    for name in ("accessKey", "secretKey", "securityToken", "mySecretKey"):
        for error in (refuse_live(**{name: "pass-1"}), refuse(**{name: "pass-1"})):
            # The access key is no secret, but hidden where it is of no use.
            assert error.name == "accessKey" or "pass-1" not in str(error)
        assert error.value == option_table.HIDDEN


def test_credentials_of_a_read() -> None:
    live = parse_live(accessKey="AK", secretKey=" pass-1 ", securityToken="token-1").live
    assert live is not None
    assert live.credentials == Credentials("AK", Secret("pass-1"), Secret("token-1"))
    assert "pass-1" not in repr(live)
    assert "token-1" not in repr(live)
    none = parse_live(accessKey="", secretKey="", securityToken="").live
    assert none is not None
    assert none.credentials is None
    assert parse_live().live == none
    for given in ({"secretKey": "pass-1"}, {"securityToken": "pass-1"}):
        error = refuse_live(**given)
        assert "accessKey" in error.allowed
        assert "pass-1" not in str(error)
    assert "secretKey" in refuse_live(accessKey="AK").allowed
    assert "unless nameServer" in refuse(secretKey="pass-1").allowed


def test_topics_and_groups_of_a_read_get_its_namespace() -> None:
    offsets = '{"a": {"b": {"0": 1}}, "%RETRY%g": {"b": {"0": 2}}, "t%c": {"b": {"0": 3}}}'
    parsed = parse_live(namespace="t", topics="a,%RETRY%g,t%c", startingOffsets=offsets)
    assert parsed.topics == {"t%a", "%RETRY%t%g", "t%c"}
    assert parsed.start.offsets == {
        "t%a": {"b": {0: 1}},
        "%RETRY%t%g": {"b": {0: 2}},
        "t%c": {"b": {0: 3}},
    }
    assert parse_live(namespace="t", assign='{"a": {"b": [0]}}').assign == {"t%a": {"b": (0,)}}
    assert parse_live(namespace="t", startingOffsets="group:g").start.group == "t%g"
    times = parse_live(namespace="t", endingOffsetsByTimestamp='{"a": {"b": {"0": 9}}}').end
    assert times.timestamps == {"t%a": {"b": {0: 9}}}
    assert live_of(namespace="t", group="g", consumerGroup="c").group == "t%g"
    assert live_of(namespace="t", consumerGroup="c").consumer_group == "t%c"
    assert live_of(namespace="t").consumer_group == "TOOLS_CONSUMER"  # every broker has it
    assert parse_live(namespace="", topic="a") == parse_live(topic="a")
    twice = refuse_live(namespace="t", assign='{"a": {"b": [0]}, "t%a": {"b": [1]}}')
    assert (twice.name, twice.allowed) == (
        "assign",
        "each topic once, with or without its namespace",
    )


def test_the_address_of_an_instance_sets_the_namespace() -> None:
    address = "http://MQ_INST_1_b.example.com:8080"
    live = live_of(nameServer=address)
    assert (live.name_server, live.namespace) == ("MQ_INST_1_b.example.com:8080", "MQ_INST_1_b")
    assert live_of(nameServer=address, namespace="own").namespace == "own"
    for given in ({"nameServer": address}, {"namespace": "t"}):
        error = refuse_live(namespaceV2="v2", **given)
        assert (error.name, error.allowed) == ("namespace", "namespace or namespaceV2, not both")
    with pytest.raises(InvalidOption) as written:
        import_options.parse({"path": "/x", "namespace": "t"})
    for error in (refuse(namespace="t"), written.value):
        assert (error.name, error.allowed) == (
            "namespace",
            "left out with a store folder, whose topics have their full names: namespace%topic",
        )


def test_tls_of_a_read() -> None:
    files = {"trustCertPath": "/ca", "certPath": "/c", "keyPath": "/k", "keyPassword": "pass-1"}
    given = {f"tls__client__{name}": text for name, text in files.items()}
    live = live_of(tls__enable="true", **given)
    assert (live.use_tls, live.tls_trust_cert_path, live.tls_cert_path) == (True, "/ca", "/c")
    assert (live.tls_key_path, live.tls_key_password.reveal()) == ("/k", "pass-1")
    assert "pass-1" not in repr(live)
    assert live_of(useTLS="TRUE") == replace(LiveOptions("ns:9876"), use_tls=True)
    for name, text in given.items():
        error = refuse_live(**{name: text})
        assert (error.name, error.value) == ("tls.enable", "false")
        assert error.allowed == f"true, as {name.replace('__', '.')} is set"
    assert refuse_live(tls__client__keyPasswords="pass-1").value == option_table.HIDDEN


# --- streams and batches -----------------------------------------------------


def stream(**given: Any) -> ReadOptions:
    return options.parse_stream({**PATH, **{name: str(value) for name, value in given.items()}})


def test_a_stream_starts_at_latest_by_default() -> None:
    assert stream().start == Bound("latest")
    assert stream(startingTimestamp=5).start == Bound("latest", timestamp_ms=5)
    assert stream(startingOffsets="earliest").start == Bound("earliest")
    # Queues without a given offset start like in a batch.
    named = stream(startingOffsets=json.dumps(QUEUES)).start
    assert named == Bound("earliest", offsets={"T": {"b": {0: 23}}})
    for bound, name, text in (
        ("start", "startingTimestamp", "0"),
        ("start", "startingOffsets", "group:g"),
        ("start", "startingOffsets", json.dumps(QUEUES)),
        ("end", "endingOffsetsByTimestamp", json.dumps(QUEUES)),
    ):
        assert not getattr(parse(**{name: text}), bound).is_whole
    assert parse(startingOffsets="earliest", endingOffsets="latest").end.is_whole


LATEST_OF_QUEUE = '{"T": {"b": {"0": -1}}}'
NO_END = "a stream has no end"
REFUSED_IN_STREAMS = [
    ("endingOffsets", "latest", NO_END),
    ("endingTimestamp", "5", NO_END),
    ("endingOffsetsByTimestamp", json.dumps(QUEUES), NO_END),
    ("startingPhysicalOffset", "5", "starts at offsets of queues or at times"),
    ("endingPhysicalOffset", "5", NO_END),
    ("view", "index", "messages"),
    ("scan", "log", "a stream follows queues"),
    ("pushdown", "true", "no predicates to the source of a stream"),
]
REFUSED_IN_STREAMS_OF_BROKERS = [
    ({"commitOffsets": "onCommit"}, "together with group"),
    ({"group": "g"}, "together with commitOffsets=onCommit, or none"),
    ({"endingOffsets": "latest"}, NO_END),
    ({"view": "topics"}, "the other views are for batch reads"),
    ({"discoveryIntervalMs": "0"}, "a whole number from 1"),
    ({"readFrom": "any"}, "master, slave"),
    ({"suspendTimeout": "1"}, "pulls are not held"),
]
AT_LATEST = "a batch that starts at the latest reads nothing"
REFUSED_IN_BATCHES = [
    (PATH, "startingOffsets", "latest", AT_LATEST),
    (PATH, "startingOffsets", LATEST_OF_QUEUE, AT_LATEST),
    *(
        (PATH, name, "5", "left out in a batch")
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
    ),
    (PATH, "maxTriggerDelay", "1s", "left out in a batch"),
    (BROKERS, "discoveryIntervalMs", "5", "left out in a batch read, which discovers once"),
    (BROKERS, "group", "g", "startingOffsets=group:NAME"),
    ({**BROKERS, "group": "g"}, "commitOffsets", "onCommit", "Spark does not notify the source"),
]


def test_streams_and_batches_refuse_options_of_each_other() -> None:
    for name, value, allowed in REFUSED_IN_STREAMS:
        parse(**{name: value})
        with pytest.raises(InvalidOption, match=allowed) as error:
            stream(**{name: value})
        assert error.value.name == name
    for given, allowed in REFUSED_IN_STREAMS_OF_BROKERS:
        with pytest.raises(InvalidOption, match=allowed):
            options.parse_stream({**BROKERS, **given})
    for where, name, value, allowed in REFUSED_IN_BATCHES:
        with pytest.raises(InvalidOption, match=allowed):
            options.check_batch(options.parse({**where, name: value}))
    for text in ("earliest", "group:g", json.dumps(QUEUES), '{"T": {"b": {"0": -2}}}'):
        options.check_batch(parse(startingOffsets=text))
    options.check_batch(parse())
    options.check_batch(parse_live(commitOffsets="none"))
    stream(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=5)
    with pytest.raises(InvalidOption, match="at most maxOffsetsPerTrigger, 5"):
        stream(minOffsetsPerTrigger=6, maxOffsetsPerTrigger=5)
