"""Header fields that RocketMQ's own classes wrote; see ``interop.record_frames``."""

import json
from pathlib import Path
from typing import Any

import pytest

from cases import each
from reput.format import headers

DATA = Path(__file__).parents[2] / "data" / "remoting"
MANIFEST: list[dict[str, Any]] = json.loads((DATA / "manifest.json").read_text(encoding="ascii"))

pytestmark = pytest.mark.interop

OURS: dict[str, type[headers.Header]] = {
    "SendMessageRequestHeader": headers.SendMessageHeader,
    "SendMessageResponseHeader": headers.SendMessageReplyHeader,
    "PullMessageRequestHeader": headers.PullMessageHeader,
    "PullMessageResponseHeader": headers.PullMessageReplyHeader,
    "UnregisterClientRequestHeader": headers.UnregisterClientHeader,
    "ConsumerSendMsgBackRequestHeader": headers.SendBackHeader,
    "GetConsumerListByGroupRequestHeader": headers.ConsumerGroupHeader,
    "NotifyConsumerIdsChangedRequestHeader": headers.ConsumerGroupHeader,
    "QueryConsumerOffsetRequestHeader": headers.QueryConsumerOffsetHeader,
    "QueryConsumerOffsetResponseHeader": headers.OffsetReplyHeader,
    "UpdateConsumerOffsetRequestHeader": headers.UpdateConsumerOffsetHeader,
    "GetMaxOffsetRequestHeader": headers.QueueHeader,
    "SearchOffsetRequestHeader": headers.SearchOffsetHeader,
    "ViewMessageRequestHeader": headers.ViewMessageHeader,
    "GetRouteInfoRequestHeader": headers.RouteHeader,
    "RegisterBrokerRequestHeader": headers.RegisterBrokerHeader,
}
V2 = "SendMessageRequestHeaderV2"
V2_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
OF_5 = {"committed", "boundaryType"}
"""Fields that only 5.x has, and a 4.x broker ignores."""

WITH_HEADER = [frame for frame in MANIFEST if frame["header"]]


def values_of(header: headers.Header) -> dict[str, Any]:
    """Return a header's values under Java's names."""
    names = type(header).__struct_encode_fields__
    return {
        wire: getattr(header, name)
        for wire, name in zip(names, type(header).__struct_fields__, strict=True)
    }


@each("entry", WITH_HEADER)
def test_decode(entry: dict[str, Any]) -> None:
    if entry["header"] == V2:
        decoded = values_of(headers.decode_v2(entry["extFields"]))
        java = {
            V2_NAMES[name]: value for name, value in entry["fields"].items() if name in V2_NAMES
        }
    else:
        decoded = values_of(headers.decode(OURS[entry["header"]], entry["extFields"]))
        java = entry["fields"]
    for name, value in java.items():
        # Java's null is our default: an absent field.
        if value is not None and name not in OF_5:
            assert decoded.get(name) == value, name


@each("entry", WITH_HEADER)
def test_encode_writes_the_fields_that_java_wrote(entry: dict[str, Any]) -> None:
    if entry["header"] == V2:
        encoded = headers.encode_v2(headers.decode_v2(entry["extFields"]))
    else:
        encoded = headers.encode(headers.decode(OURS[entry["header"]], entry["extFields"]))
    # Java adds these outside the header: MSG_REGION, TRACE_ON.
    beside = {"MSG_REGION", "TRACE_ON", *OF_5}
    assert encoded.items() >= {
        (name, value) for name, value in entry["extFields"].items() if name not in beside
    }
