"""Brokers of one name at a name server: requests 103, 104, 901, 904, and notices to them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from reput.format import fastjson
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.server import RemotingServer

NAME, CLUSTER = "broker-a", "C"
_BODY = {
    "topicConfigSerializeWrapper": {
        "topicConfigTable": {},
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
    },
    "filterServerList": [],
}
NOTICE_S = 0.5
"""Time in which notices of Java's name server arrive."""


class _Broker:
    """A port of a broker, and its connection to the name server."""

    def __init__(self, broker_id: int, log: list[dict[str, Any]]) -> None:
        self.id = broker_id
        self.client = RemotingClient()
        self.server = RemotingServer(self, host="127.0.0.1")
        self._log = log

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def on_open(self, channel: Channel) -> None:
        """Do nothing."""

    def on_closed(self, channel: Channel) -> None:
        """Do nothing."""

    def on_request(self, channel: Channel, request: Command) -> None:
        self._log.append(
            {
                "to": self.id,
                "code": request.code,
                "oneway": request.is_oneway,
                "fields": request.ext_fields,
            }
        )


def _request(code: int, fields: Mapping[str, object], body: bytes = b"") -> Command:
    return Command(code, ext_fields={key: str(value) for key, value in fields.items()}, body=body)


async def play(address: str, recorded: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the reply to each step and the notices after it, by name; addresses are ``BROKER-id``.

    Args:
        address: A name server that notifies.
        recorded: What was recorded: as many notices are waited for; None: waits ``NOTICE_S``.
    """
    notices: list[dict[str, Any]] = []
    brokers = [_Broker(broker_id, notices) for broker_id in range(3)]
    for broker in brokers:
        await broker.server.start()
    answers: dict[str, Any] = {}

    def masked(value: Any) -> Any:
        text = json.dumps(value, sort_keys=True)
        for broker in brokers:
            text = text.replace(broker.address, f"BROKER-{broker.id}")
        return json.loads(text)

    async def take(name: str, broker: _Broker, request: Command | None) -> None:
        """Play a step; None closes the connection of the broker."""
        notices.clear()
        answer: dict[str, Any] = {}
        if request is None:
            await broker.client.close()
        else:
            reply = await broker.client.invoke(address, request, 10_000)
            answer = {
                "code": reply.code,
                "body": fastjson.parse(reply.body.decode()) if reply.body else None,
            }
        if recorded is None:
            await asyncio.sleep(NOTICE_S)
        else:
            async with asyncio.timeout(30):
                while len(notices) < len(recorded[name]["notices"]):
                    await asyncio.sleep(0)
        kept = sorted(notices, key=lambda notice: int(notice["to"]))
        answers[name] = masked({**answer, "notices": kept})

    def registration(broker: _Broker) -> Command:
        return _request(
            RequestCode.REGISTER_BROKER,
            {
                "brokerName": NAME,
                "brokerAddr": broker.address,
                "clusterName": CLUSTER,
                "brokerId": broker.id,
                "haServerAddr": f"10.0.0.{broker.id}:1",
                "enableActingMaster": "true",
                "compressed": "false",
                "bodyCrc32": 0,
            },
            json.dumps(_BODY).encode(),
        )

    def members(**fields: str) -> Command:
        return _request(RequestCode.GET_BROKER_MEMBER_GROUP, fields)

    def heartbeat(**fields: str) -> Command:
        return _request(RequestCode.BROKER_HEARTBEAT, fields)

    master, first, second = brokers
    of_group = {"clusterName": CLUSTER, "brokerName": NAME}
    unregistration = {**of_group, "brokerAddr": master.address, "brokerId": 0}
    try:
        await take("members of an unknown name", master, members(**of_group))
        await take("first slave", first, registration(first))
        await take("second slave", second, registration(second))
        await take("master", master, registration(master))
        await take("members", second, members(**of_group))
        await take("members of another cluster", second, members(clusterName="X", brokerName=NAME))
        known = {**of_group, "brokerAddr": master.address}
        await take("heartbeat", master, heartbeat(**known))
        await take("heartbeat of a stranger", master, heartbeat(**{**known, "brokerAddr": "h:1"}))
        await take("master leaves", master, _request(RequestCode.UNREGISTER_BROKER, unregistration))
        await take("members without a master", second, members(**of_group))
        await take("first slave is gone", first, None)
        await take("members at the end", second, members(**of_group))
    finally:
        for broker in brokers:
            await broker.client.close()
            await broker.server.stop()
    return answers
