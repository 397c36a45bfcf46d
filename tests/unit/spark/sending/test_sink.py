"""Writers in Spark's driver: refusals, and the summary at the end."""

import logging
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from reput.errors import InvalidOption
from reput.spark.sending.send import SentCounts
from reput.spark.sending.sink import BrokerStreamWriter, BrokerWriter, Sent
from reput.spark.source import RocketMQDataSource

TEXT = StringType()
BROKERS = {"nameServer": "a:1", "topic": "T"}


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


BODY = schema(body=TEXT)


def test_all_columns_are_accepted() -> None:
    columns = schema(
        body=TEXT,
        keys=ArrayType(TEXT),
        properties=MapType(TEXT, TEXT),
        deliver_at=TimestampType(),
        queue_id=ShortType(),
        flag=LongType(),
    )
    source = RocketMQDataSource(dict(BROKERS))
    assert isinstance(source.writer(columns, overwrite=False), BrokerWriter)
    assert isinstance(source.streamWriter(columns, overwrite=False), BrokerStreamWriter)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (schema(body=TEXT, colour=TEXT), BROKERS, "colour string"),
        (schema(body=TEXT, deliver_at=TimestampNTZType()), BROKERS, "deliver_at timestamp"),
        (BODY, {"nameServer": "a:1"}, "a column topic"),
        (BODY, {"topic": "T"}, "host:port of a name server, to send; or path, to make a store"),
        (BODY, {**BROKERS, "path": "/x"}, "not both"),
        (BODY, {**BROKERS, "secretKey": "pass-1"}, "unless accessKey is given as well"),
    ],
)
@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_invalid_columns_and_options_are_refused(
    kind: str, columns: StructType, options: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidOption) as error:
        getattr(RocketMQDataSource(dict(options)), kind)(columns, overwrite=False)
    assert text in str(error.value)
    assert "pass-1" not in str(error.value)


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_overwrite_is_refused_with_brokers(kind: str) -> None:
    with pytest.raises(InvalidOption, match="what brokers have cannot be replaced"):
        getattr(RocketMQDataSource(dict(BROKERS)), kind)(BODY, overwrite=True)


def test_a_given_write_id_is_refused_in_a_stream() -> None:
    with pytest.raises(InvalidOption, match="left out in a stream"):
        RocketMQDataSource({**BROKERS, "writeId": "x"}).streamWriter(BODY, overwrite=False)


@pytest.mark.parametrize(
    ("second", "level"),
    [({}, "INFO"), ({"skipped_count": 1}, "WARNING"), ({"unsafe_count": 1}, "WARNING")],
)
def test_the_summary_is_logged(
    caplog: pytest.LogCaptureFixture, second: dict[str, Any], level: str
) -> None:
    writer = RocketMQDataSource(dict(BROKERS)).streamWriter(BODY, overwrite=False)
    caplog.set_level(logging.INFO, "reput.spark")
    counts = [SentCounts(message_count=2, retry_count=1), SentCounts(message_count=3, **second)]
    writer.commit([Sent(count) for count in counts], 7)
    (record,) = caplog.records
    assert record.levelname == level
    assert "batch 7 to brokers: message_count 5" in record.message
    assert "retry_count 1" in record.message
    caplog.clear()
    writer.abort([Sent(counts[0]), None], 8)
    assert "of tasks that ended 2 messages are there" in caplog.text
