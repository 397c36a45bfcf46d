"""Requests with mistakes that 5.x clients make, and how a server is prepared for them.

``tests/data/grpc/replies.json`` has the reply of the official proxy 5.5.0 to each;
``interop.record_replies`` records them, and ``unit/grpc/test_java_replies.py`` compares ours.

A text ``<held>``, ``<late>`` ... in a request becomes the receipt handle of a message that was just
received, changed in one place.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from grpc_client import GrpcClient, message, receive_request
from reput.client.blocking import Admin
from reput.format.bodies import SubscriptionGroupConfig
from reput.format.codes import PERM_READ, PERM_WRITE

FILE = Path(__file__).parent / "data" / "grpc" / "replies.json"
TOPICS = {
    "Normal": "NORMAL",
    "Fifo": "FIFO",
    "Delay": "DELAY",
    "Transaction": "TRANSACTION",
    "Mixed": "MIXED",
    "Lite": "LITE",
    "ReadOnly": "NORMAL",
    "WriteOnly": "NORMAL",
}
PERMISSIONS = {"ReadOnly": PERM_READ, "WriteOnly": PERM_WRITE}
GROUPS = {
    "group": {},
    "disabled": {"consume_enable": False},
    "lite": {"attributes": {"+lite.bind.topic": "Lite"}},
}
STRANGERS = ("stranger", "newcomer")
"""Clients without settings; the latter has never received, either."""
CHANGES = {
    "expired": (1, lambda pop_ms: pop_ms - 100_000),
    "other broker": (5, lambda _: "broker-z"),
    "far queue": (6, lambda _: 99),
    "far offset": (7, lambda _: 99_999_999),
    "later pop": (1, lambda pop_ms: pop_ms + 5),
}
"""Changed handles: the place of the field, and its new value."""


def prepare(namesrv: str) -> None:
    """Create topics and groups."""
    with Admin(namesrv) as admin:
        for name, kind in TOPICS.items():
            more = {"perm": PERMISSIONS[name]} if name in PERMISSIONS else {}
            admin.create_topic(name, queue_count=4, attributes={"message.type": kind}, **more)
        for name, settings in GROUPS.items():
            admin.create_group(SubscriptionGroupConfig(group_name=name, **settings))


def cases() -> list[dict[str, Any]]:
    """Return the entries of the file: name, client, method, request, and both replies."""
    entries: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return entries


class RequestClient:
    """Sends the requests to a server.

    Args:
        endpoint: Its address.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._opened = contextlib.ExitStack()
        self._clients: dict[str, GrpcClient] = {}

    def __enter__(self) -> "RequestClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _client(self, name: str) -> GrpcClient:
        """Return a client, with the settings that its name says."""
        if name not in self._clients:
            client = self._opened.enter_context(GrpcClient(self._endpoint, name))
            self._clients[name] = client
            if name == "producer":
                client.produce("Normal")
            elif name not in STRANGERS:
                client.consume(name if name in GROUPS else "group", "Normal")
        return self._clients[name]

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return code and text of the reply, and of its entries."""
        client = self._client(case["client"])
        request = self._filled(case["request"])
        method = case["method"]
        try:
            if method == "Telemetry":
                with GrpcClient(self._endpoint, "settings") as other:
                    reply = other.telemetry(**request)
            elif method == "ReceiveMessage":
                more = request.get("more", {})
                group, topic = request["group"], request["topic"]
                replies = client.receive(**receive_request(group, topic, **more))
                reply = replies[0]
            elif method == "SendMessage":
                sent = [message(**_with_bytes(each)) for each in request["messages"]]
                reply = client.call(method, messages=sent)
            else:
                reply = client.call(method, **request)
        except grpc.RpcError as error:
            return {"code": error.code().name, "message": error.details()}
        result = {"code": reply["status"]["code"], "message": reply["status"].get("message", "")}
        entries = [entry["status"] for entry in reply.get("entries", ())]
        if entries and result["code"] != 20_000:
            result["message"] = entries[0].get("message", "")
        return result

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if isinstance(value, str) and value.endswith(" names"):
            return [f"lite-{number}" for number in range(int(value.split()[0]))]
        if isinstance(value, str) and value.startswith("<"):
            return self._handle(value.strip("<>"))
        return value

    def _handle(self, change: str) -> str:
        client = self._client("group")
        client.call("SendMessage", messages=[message("Normal")])
        items: list[Any] = []
        while not items:
            items = client.messages("group", "Normal", batch_size=1)
        handle: str = items[0]["system_properties"]["receipt_handle"]
        fields: list[Any] = handle.split(" ")
        if change in CHANGES:
            place, changed = CHANGES[change]
            text = fields[place]
            fields[place] = changed(int(text) if text.isdecimal() else text)
        place_of = {"group": {"name": "group"}, "topic": {"name": "Normal"}}
        entry = {"message_id": "01", "receipt_handle": handle}
        if change == "acknowledged":
            client.call("AckMessage", **place_of, entries=[entry])
        if change == "replaced":
            time = {"invisible_duration": {"seconds": 60}}
            client.call("ChangeInvisibleDuration", **place_of, **entry, **time)
        return " ".join(map(str, fields))


def _with_bytes(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "body": fields.get("body", "body").encode()}


def write(entries: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    """Write the file: an entry a line."""
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
