"""Batch bodies: the same bytes as Java's producer, and the same messages as Java's consumer."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

import seeds
from interop import samples
from interop.java_oracle import Oracle, Word, property_words
from reput.format import (
    batch,
    body as bodies,
    message as records,
    properties as props,
    sys_flag as flags,
)
from reput.format.batch import InnerMessage

pytestmark = pytest.mark.interop

BATCHES = 400


def writes_last_separator(oracle: Oracle) -> bool:
    return oracle.version != "4.9.7"


def inner_words(message: InnerMessage) -> list[Word]:
    return [message.flag, message.body, *property_words(props.decode(message.property_bytes))]


def random_batch(random: Random, *, last_separator: bool = True) -> list[InnerMessage]:
    return [
        InnerMessage(
            samples.number(random, 32),
            samples.body(random)[:500],
            props.encode(samples.properties(random), last_separator=last_separator),
        )
        for _ in range(random.choice((1, 2, 3, 10)))
    ]


def expected_of_java(messages: list[InnerMessage]) -> list[dict[str, Any]]:
    return [
        {
            "flag": message.flag,
            "body": message.body.hex(),
            "properties": props.decode(message.property_bytes),
        }
        for message in messages
    ]


def test_java_encodes_the_same_bytes(oracle: Oracle) -> None:
    random = seeds.random("batch", 1)
    batches = [
        random_batch(random, last_separator=writes_last_separator(oracle))
        for _ in range(oracle.size(BATCHES, 25))
    ]
    requests = [[word for message in part for word in inner_words(message)] for part in batches]
    for part, answer in zip(batches, oracle.ask("encodeBatch", requests), strict=True):
        assert batch.encode(part).hex() == answer
        assert batch.decode(bytes.fromhex(answer)) == part


def test_java_decodes_our_batches(oracle: Oracle) -> None:
    random = seeds.random("batch", 2)
    batches = [
        random_batch(random, last_separator=i % 2 == 0) for i in range(oracle.size(BATCHES, 25))
    ]
    answers = oracle.ask("decodeBatch", [(batch.encode(part),) for part in batches])
    for part, answer in zip(batches, answers, strict=True):
        assert answer == expected_of_java(part)


def test_an_empty_batch_is_encoded(oracle: Oracle) -> None:
    assert oracle.ask_one("decodeBatch", b"") == batch.decode(b"") == []
    assert oracle.ask_one("encodeBatch") == batch.encode([]).hex() == ""


def test_a_batch_record_unwraps_as_in_a_5x_client(oracle: Oracle) -> None:
    if oracle.is_4:
        pytest.skip("no such case: 4.x has no batch records")
    random = seeds.random("batch", 3)
    outers = []
    for i in range(oracle.size(BATCHES, 25)):
        outer = samples.message(random)
        inner = random_batch(random)
        first = random.randrange(1 << 40)
        sys_flag = outer.sys_flag | flags.INNER_BATCH | flags.NEED_UNWRAP
        kinds = samples.SAME_EVERYWHERE if oracle.is_recorded else samples.COMPRESSIONS.values()
        compression = [0, *kinds][i % (1 + len(kinds))]
        if compression:
            sys_flag = sys_flag & ~flags.COMPRESSION_TYPE_MASK | compression
        body = bodies.compress(batch.encode(inner), sys_flag)
        outer = replace(
            outer,
            sys_flag=sys_flag,
            body=body,
            body_crc=bodies.crc(body),
            queue_offset=first,
            property_bytes=props.encode(
                {props.INNER_BASE: str(first), props.INNER_NUM: str(len(inner))}
            ),
        )
        outers.append(samples.stored(outer))
    answers = oracle.ask("unwrap", [(record,) for _, record in outers])
    for (outer, _), answer in zip(outers, answers, strict=True):
        messages = batch.unwrap(outer)
        assert len(messages) == len(answer)
        for message, java in zip(messages, answer, strict=True):
            assert message.topic == java["topic"]
            assert message.plain_body().hex() == java["body"]
            assert message.queue_id == java["queueId"]
            assert message.queue_offset == java["queueOffset"]
            assert message.physical_offset == java["physicalOffset"]
            assert message.born_timestamp == java["bornTimestamp"]
            assert message.store_timestamp == java["storeTimestamp"]
            assert str(message.born_host) == java["bornHost"]
            assert str(message.store_host) == java["storeHost"]
            assert message.flag == java["flag"]
            # The client copies WAIT from the record of the batch; it has no effect at this point.
            assert java["properties"] == {**message.properties, props.WAIT: "true"}
            assert not message.sys_flag & (flags.INNER_BATCH | flags.COMPRESSED)
            assert records.encode(message)  # a complete record
