"""Options of writes: accepted values, refusals, and their texts."""

from typing import Any

import pytest

from reput.errors import InvalidOption
from reput.spark.option_table import FAIL_STATUSES
from reput.spark.sending import options as write_options
from reput.spark.sending.options import RowOptions, SendOptions

ADDRESS = {"nameServer": "a:1"}


def parse(**given: Any) -> SendOptions:
    texts = {name.replace("_", "."): str(value) for name, value in given.items()}
    return write_options.parse({**ADDRESS, **texts})


def test_defaults() -> None:
    assert parse() == SendOptions(rows=RowOptions(), name_server="a:1")


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"topic": "T"}, "rows", RowOptions(topic="T")),
        ({"ignoreReadColumns": True}, "rows", RowOptions(ignore_read_columns=True)),
        ({"broker": "a, b"}, "brokers", frozenset({"a", "b"})),
        ({"producerGroup": "g"}, "producer_group", "g"),
        ({"sendMode": "ASYNC"}, "mode", "async"),
        ({"batchBytes": "1m"}, "batch_bytes", 1 << 20),
        ({"maxInFlight": 3}, "window_count", 3),
        ({"sendTimeoutMs": 10}, "timeout_ms", 10),
        ({"send_numRetries": 0}, "retry_count", 0),
        ({"send_retryIntervalMs": 1}, "retry_interval_ms", 1),
        ({"failOn": "none"}, "fail_on", frozenset()),
        ({"failOn": "slave_not_available"}, "fail_on", frozenset({"SLAVE_NOT_AVAILABLE"})),
        ({"failOn": ",".join(FAIL_STATUSES)}, "fail_on", frozenset(FAIL_STATUSES)),
        ({"compressOverBytes": 0}, "compress_over_bytes", 0),
        ({"maxMessageBytes": "1k"}, "max_message_bytes", 1024),
        ({"idempotent": False}, "skip_present", "none"),
        ({"sendMode": "oneway"}, "skip_present", "none"),
        ({"idempotent": False, "skipPresent": "all"}, "skip_present", "all"),
        ({"namespace": "t"}, "producer_group", "t%SPARK_SINK"),
        ({"nameServer": "http://MQ_INST_1_b.x:80"}, "name_server", "MQ_INST_1_b.x:80"),
        ({"nameServer": "http://MQ_INST_1_b.x:80"}, "namespace", "MQ_INST_1_b"),
        ({"writeId": "nightly/7"}, "write_id", "nightly/7"),
        ({"checkpointLocation": "/x"}, "name_server", "a:1"),
    ],
)
def test_accepted(given: dict[str, Any], field: str, value: object) -> None:
    assert getattr(parse(**given), field) == value


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "a b"}, "1 to 127 characters"),
        ({"sendMode": "transactional"}, "batch, sync, async, oneway: messages in transactions"),
        ({"sendMode": "fast"}, "batch, sync, async, oneway"),
        ({"failOn": "SEND_OK"}, "FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE"),
        ({"skipPresent": "derived", "idempotent": False}, "no key is derived"),
        ({"skipPresent": "all", "sendMode": "oneway"}, "there are no replies"),
        ({"writeId": "w", "idempotent": False}, "idempotent=false"),
        ({"writeId": "a b"}, "visible ASCII"),
        ({"maxInFlight": 0}, "a whole number from 1"),
        ({"accessKey": "key-1"}, "together with a secretKey"),
        ({"secretKey": "pass-1"}, "unless accessKey"),
        ({"tls.client.certPath": "/c"}, "true, as tls.client.certPath is set"),
        ({"namespace": "t" * 124, "topic": "ABCD"}, "at most 127 characters, with the namespace"),
        ({"namespace": "t", "namespaceV2": "t"}, "namespace or namespaceV2, not both"),
        ({"colour": 1}, "one of accessKey, batchBytes, broker"),
        ({"nameServer": ";"}, "host:port"),
    ],
)
def test_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parse(**given)
    assert text in str(error.value)
    assert "pass-1" not in str(error.value)


def test_targets_of_rows() -> None:
    assert write_options.goes_to_brokers({"NAMESERVER": "a:1"})
    assert not write_options.goes_to_brokers({"path": "/x"})
    for options in ({}, {"path": "/x", "rocketmq.namesrv.addr": "a:1"}):
        with pytest.raises(InvalidOption, match="path"):
            write_options.goes_to_brokers(options)
