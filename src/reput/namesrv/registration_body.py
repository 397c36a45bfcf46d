"""Decoding of the body of a registration (103), a few topics at a time.

A broker with 100,000 topics sends 16 MB of JSON. Decoding it in one step would block all other
requests, and so would a hostile body. A short body is decoded in one step, in all variants of
``bodies.decode``; a long one must be standard JSON, or compressed.
"""

import json
import re

import msgspec

from reput.errors import InvalidBody, excerpt
from reput.format import bodies, limits
from reput.format.bodies import DataVersion, RegisterBrokerBody, TopicConfigData, TopicConfigTable
from reput.remoting.time_slices import Steps

V3_0_11 = 37
"""Brokers before this version send only their topics, without filter servers."""

_ZLIB = b"\x78"
"""First byte of zlib data, which JSON never begins with."""
_WINDOW_LETTERS = 4 * limits.REGISTRATION_PART_BYTES.maximum
_PART = 50
"""Topics that are decoded between two yields."""
_SPACE = re.compile(r"[ \t\r\n]*")

_one_value = json.JSONDecoder().raw_decode


class _LongTable(msgspec.Struct, rename="camel"):
    """A table of topics whose parts are not decoded yet."""

    data_version: msgspec.Raw
    topic_config_table: msgspec.Raw


class _LongBody(msgspec.Struct, rename="camel"):
    """A complete registration."""

    topic_config_serialize_wrapper: _LongTable
    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")


def read(body: bytes, version: int, *, is_compressed: bool) -> Steps[RegisterBrokerBody]:
    """Decode a registration; yield so that other requests are served.

    Args:
        body: Body of the request.
        version: Version of RocketMQ in the request's header.
        is_compressed: Value of that header field.

    Raises:
        InvalidBody: The body is not valid.
        LimitExceeded: It is too large, or has too many topics.
    """
    if not body:
        nothing = TopicConfigTable(data_version=DataVersion(), topic_config_table={})
        return RegisterBrokerBody(topic_config_serialize_wrapper=nothing)
    is_old = version < V3_0_11
    # 5.x sends compressed bodies without setting the field (5.3.3
    # BrokerOuterAPI.registerBrokerAll).
    if not is_old and (is_compressed or body.startswith(_ZLIB)):
        return (yield from bodies.decompress_registration(body))
    if len(body) <= limits.LENIENT_JSON_BYTES.maximum:
        if is_old:
            table = bodies.decode(TopicConfigTable, body)
            return RegisterBrokerBody(topic_config_serialize_wrapper=table)
        return bodies.decode(RegisterBrokerBody, body)
    try:
        if is_old:
            long = _LongBody(msgspec.json.decode(body, type=_LongTable))
        else:
            long = msgspec.json.decode(body, type=_LongBody)
        yield
        parts = long.topic_config_serialize_wrapper
        text = bytes(parts.topic_config_table).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"body is no {RegisterBrokerBody.__name__}: {error}") from error
    yield
    size_limit = limits.REGISTRATION_PART_BYTES
    servers, data_version = bytes(long.filter_server_list), bytes(parts.data_version)
    version_of_table = bodies.decode(DataVersion, data_version, size_limit=size_limit)
    filter_servers = bodies.decode(list[str], servers, size_limit=size_limit)
    topics = yield from _read_topics(text)
    table = TopicConfigTable(data_version=version_of_table, topic_config_table=topics)
    return RegisterBrokerBody(
        filter_server_list=filter_servers, topic_config_serialize_wrapper=table
    )


def _read_topics(text: str) -> Steps[dict[str, TopicConfigData]]:
    """Decode the object of topics, ``{"name":{...},...}``, which is valid JSON."""
    topics: dict[str, TopicConfigData] = {}
    position = _after_space(text, 0)
    if not text.startswith("{", position):
        raise InvalidBody("body is no RegisterBrokerBody: topicConfigTable is no object")
    position = _after_space(text, position + 1)
    # A window of the text: the cost of a step depends on its size, not on the rest of the text.
    start, window = 0, ""
    number = 0
    while not text.startswith("}", position):
        if not start <= position < start + len(window) // 2:
            start, window = position, text[position : position + _WINDOW_LETTERS]
        try:
            key, end = _one_value(window, position - start)
            colon = _after_space(window, end)
            value, end = _one_value(window, _after_space(window, colon + 1))
        except (ValueError, RecursionError) as error:
            if start == position or isinstance(error, RecursionError):
                raise limits.REGISTRATION_PART_BYTES.exceeded() from error
            window = ""
            continue
        limits.REGISTRATION_PART_BYTES.check(start + end - position)
        topics[str(key)] = _topic(value)
        limits.REGISTRATION_TOPICS.check(len(topics))
        position = _after_space(text, start + end)
        if text.startswith(",", position):
            position = _after_space(text, position + 1)
        number += 1
        if number % _PART == 0:
            yield
    return topics


def _after_space(text: str, position: int) -> int:
    """Return the end of white space."""
    space = _SPACE.match(text, position)
    assert space is not None
    return space.end()


def _topic(value: object) -> TopicConfigData:
    try:
        return msgspec.convert(value, TopicConfigData, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        text = f"body is no RegisterBrokerBody: a topic: {excerpt(str(error))}"
        raise InvalidBody(text) from error
