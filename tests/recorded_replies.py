"""Requests to a broker and its name server, and the replies of RocketMQ's to them.

``tests/data/replies/README.md`` describes the table. The same requests are sent to official servers
and to ours.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reput.errors import RequestTimedOut
from reput.format import command as commands, fastjson
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient

TABLE = Path(__file__).parent / "data/replies/requests.jsonl"
VERSIONS = {"4.9.7": 407, "5.5.0": 513}
"""Version of RocketMQ to the number that its clients send."""
SETTINGS = {
    "autoCreateTopicEnable": False,
    "autoCreateSubscriptionGroup": False,
    "enableLmq": True,
    "enableMultiDispatch": True,
    "enablePropertyFilter": True,
}
"""Settings of the brokers."""
TIMEOUT_MS = 15_000
LOOKS = 500
PAUSE_S = 0.05
TEXT_LETTERS = 400
"""Characters of a remark that are recorded."""
_ADDRESS = re.compile(r"/?127\.0\.0\.1:\d+")
_FOLDER = re.compile(r"/tmp/[^/\"]+")
_OF_CLIENT = {
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: (
        b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"N8"}:1}}'
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: b'{"jstack":"none"}',
}
"""Bodies with which the client answers requests of the broker."""


@dataclass(frozen=True)
class Reply:
    """A reply, as far as it is compared."""

    code: int
    remark: str | None
    """Without addresses."""
    fields: Sequence[str]
    """Names of its header's fields, sorted."""
    body: Any
    """Its body if that is JSON, else None. A map whose keys are objects is ``{"pairs": [...]}``."""


def rows() -> list[dict[str, Any]]:
    """Return the rows of the table: requests in order, with the replies of official servers."""
    return [json.loads(line) for line in TABLE.read_text(encoding="ascii").splitlines()]


def write(replies: Mapping[str, Mapping[str, Reply | None]]) -> None:
    """Write the replies of official servers, by version and name of the request."""
    table = rows()
    for row in table:
        for version, of_version in replies.items():
            reply = of_version[row["name"]]
            row[version] = None if reply is None else vars(reply)
    text = "".join(json.dumps(row) + "\n" for row in table)
    TABLE.write_text(_FOLDER.sub("/folder", text), encoding="ascii")


async def ask_all(broker: str, namesrv: str, version: str) -> dict[str, Reply | None]:
    """Send all requests as a client of a version.

    Returns:
        The replies by name of the request; None where there is none.
    """

    def answer(_: str, request: Command) -> Command | None:
        body = _OF_CLIENT.get(RequestCode(request.code))
        return None if body is None else commands.reply(request, body=body)

    replies: dict[str, Reply | None] = {}
    async with RemotingClient(handler=answer) as client:
        for row in rows():
            address = broker if row["to"] == "broker" else namesrv
            reply = await _ask(client, address, row, VERSIONS[version])
            for _ in range(LOOKS):
                if "until" not in row or (reply is not None and reply.code == row["until"]):
                    break
                await asyncio.sleep(PAUSE_S)  # Java dispatches messages, and registers, later
                reply = await _ask(client, address, row, VERSIONS[version])
            replies[row["name"]] = _reply(reply)
    return replies


async def _ask(
    client: RemotingClient, address: str, row: Mapping[str, Any], version: int
) -> Command | None:
    """Return the reply; None if there is none."""
    fields = dict(row.get("fields", {}))
    request = Command(row["code"], ext_fields=fields, body=_body(row), version=version)
    try:
        return await client.invoke(address, request, TIMEOUT_MS)
    except RequestTimedOut:
        return None


def _body(row: Mapping[str, Any]) -> bytes:
    if "body" in row:
        return json.dumps(row["body"]).encode()
    if "body_repeat" in row:
        text, count = row["body_repeat"]
        return str(text).encode() * int(count)
    return str(row.get("body_text", "")).encode()


def _reply(reply: Command | None) -> Reply | None:
    if reply is None:
        return None
    body = None
    if reply.body[:1] in (b"{", b"["):
        with contextlib.suppress(ValueError):
            body = _named_pairs(fastjson.parse(reply.body.decode()))
    remark = reply.remark and _ADDRESS.sub("ADDRESS", reply.remark)[:TEXT_LETTERS]
    return Reply(reply.code, remark, sorted(reply.ext_fields or {}), body)


def _named_pairs(value: Any) -> Any:
    if isinstance(value, fastjson.ObjectKeyed):
        return {"pairs": [[_named_pairs(key), _named_pairs(item)] for key, item in value]}
    if isinstance(value, dict):
        return {key: _named_pairs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named_pairs(item) for item in value]
    return value


# --- bodies -------------------------------------------------------------------------

MAPS = {
    "attributes", "brokerAddrTable", "brokerAddrs", "clusterAddrTable", "consumerTable",
    "correctionOffsets", "data", "filterServerTable", "forbiddenTable", "groupMeta",
    "groupTopicMap", "messageQueueTable", "messageRequestModeMap", "offsetTable",
    "pullOffsetTable", "subscriptionGroupTable", "subscriptionTable", "table", "timingCount",
    "topicConfigTable", "topicMeta", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap",
}  # fmt: skip
"""Fields that are maps: the names in them are data."""


def differences(theirs: Sequence[Any], ours: Sequence[Any], place: str = "") -> Iterator[str]:
    """Yield the differences between the fields and types of two lists of values at one place.

    A field that all of their objects have must be in all of ours, and none of ours may have another
    field. An int may be where they have a float.
    """
    if not theirs or not ours:
        return
    their_kinds = {_kind(value, place) for value in theirs}
    our_kinds = {_kind(value, place) for value in ours}
    if not our_kinds <= (their_kinds | {"int"} if "float" in their_kinds else their_kinds):
        yield f"{place} is {', '.join(sorted(our_kinds))}, not {', '.join(sorted(their_kinds))}"
        return
    their_parts, our_parts = _parts(theirs, place), _parts(ours, place)
    for name, values in their_parts.items():
        if name not in our_parts and name != ITEMS and len(values) == len(theirs):
            yield f"{place}.{name} is missing"
        elif name in our_parts:
            if name != ITEMS and len(values) == len(theirs) and len(our_parts[name]) < len(ours):
                yield f"{place}.{name} is sometimes missing"
            yield from differences(values, our_parts[name], f"{place}.{name}")
    unknown = our_parts.keys() - their_parts.keys() - {ITEMS}
    yield from (f"{place}.{name} is unknown" for name in sorted(unknown))


ITEMS = "*"
"""Place of the items of a list and of the values of a map."""


def _kind(value: Any, place: str) -> str:
    return "map" if _is_map(value, place) else type(value).__name__


def _is_map(value: Any, place: str) -> bool:
    if not isinstance(value, dict):
        return False
    name = place.rpartition(".")[2]
    return "pairs" in value or name in MAPS or (bool(value) and all(map(str.isdecimal, value)))


def _parts(values: Sequence[Any], place: str) -> dict[str, list[Any]]:
    """Return the values of each field, or the items, of values at one place."""
    parts: dict[str, list[Any]] = {}
    for value in values:
        if isinstance(value, list):
            parts.setdefault(ITEMS, []).extend(value)
        elif isinstance(value, dict) and "pairs" in value:
            parts.setdefault(ITEMS, []).extend(item for _, item in value["pairs"])
        elif isinstance(value, dict) and _is_map(value, place):
            parts.setdefault(ITEMS, []).extend(value.values())
        elif isinstance(value, dict):
            for name, item in value.items():
                parts.setdefault(name, []).append(item)
    return parts
