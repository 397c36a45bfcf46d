"""A name server and brokers whose answers a test decides, over real connections."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Self

from reput.format import bodies, command
from reput.format.bodies import BrokerData, QueueData, TopicRouteData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import RemotingServer

Answer = Callable[[Command], Command | None]


class ScriptedServer:
    """A server that answers by request code, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.answers: dict[int, Answer] = {}
        self.channels: list[Channel] = []
        self.arrived = asyncio.Condition()
        self._server = RemotingServer(self, host="127.0.0.1")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def asked(self, *codes: RequestCode) -> list[Command]:
        return [request for request in self.requests if request.code in codes]

    async def until_asked(self, code: RequestCode, count: int = 1) -> list[Command]:
        """Wait for a number of requests of a code."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.asked(code)) >= count)
        return self.asked(code)

    def on_open(self, channel: Channel) -> None:
        self.channels.append(channel)

    def on_closed(self, channel: Channel) -> None:
        self.channels.remove(channel)

    def on_request(self, channel: Channel, request: Command) -> Command | None:
        self.requests.append(request)
        asyncio.get_running_loop().create_task(self._notify())
        answer = self.answers.get(request.code)
        if answer is None:
            remark = f"the test has no answer for code {request.code}"
            return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return answer(request)

    async def _notify(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()


class ScriptedBroker(ScriptedServer):
    """A broker that accepts sends: ``msgId`` is a number that counts up, as the queue offset."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sent_count = 0
        self.answers = {
            RequestCode.SEND_MESSAGE_V2: self.stored,
            RequestCode.SEND_BATCH_MESSAGE: self.stored,
            RequestCode.HEART_BEAT: command.reply,
            RequestCode.UNREGISTER_CLIENT: command.reply,
        }

    def stored(self, request: Command, code: int = ResponseCode.SUCCESS) -> Command:
        assert request.ext_fields is not None
        fields = {
            "msgId": f"{self.sent_count:032X}",
            "queueId": request.ext_fields["e"],
            "queueOffset": str(self.sent_count),
        }
        self.sent_count += 1
        return command.reply(request, code, ext_fields=fields)

    def refuse(self, code: ResponseCode, remark: str = "no") -> None:
        """Answer every send with an error."""
        self.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: command.reply(
            request, code, remark
        )

    def store_as(self, code: ResponseCode) -> None:
        """Answer every send with a given code, and with the place of the message."""
        self.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: self.stored(request, code)

    def fall_silent(self) -> None:
        """Stop answering sends."""
        self.answers[RequestCode.SEND_MESSAGE_V2] = lambda _: None


class ScriptedCluster:
    """A name server, some brokers ``broker-a``, ``broker-b``, ..., and topics.

    Args:
        topics: Topic -> broker name -> number of queues.
        brokers: Number of brokers.
        slaves: Number of slaves of each broker; ``replicas`` has them.
    """

    def __init__(
        self, topics: Mapping[str, Mapping[str, int]], brokers: int = 1, slaves: int = 0
    ) -> None:
        self.topics = {topic: dict(queues) for topic, queues in topics.items()}
        self.name_server = ScriptedServer()
        self.name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = self._route
        self.brokers = [ScriptedBroker(f"broker-{chr(ord('a') + i)}") for i in range(brokers)]
        self.replicas: dict[str, dict[int, ScriptedBroker]] = {
            broker.name: {0: broker} | {i + 1: ScriptedBroker(broker.name) for i in range(slaves)}
            for broker in self.brokers
        }
        """Broker name -> broker id -> broker, as in routes. A test may remove and add brokers."""
        self._servers = [
            self.name_server,
            *(broker for replicas in self.replicas.values() for broker in replicas.values()),
        ]

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def broker(self) -> ScriptedBroker:
        return self.brokers[0]

    async def __aenter__(self) -> Self:
        for server in self._servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.stop()

    def _route(self, request: Command) -> Command:
        assert request.ext_fields is not None
        queues = self.topics.get(request.ext_fields["topic"])
        if queues is None:
            return command.reply(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        route = TopicRouteData(
            broker_datas=[
                BrokerData(
                    broker_addrs={number: replica.address for number, replica in replicas.items()},
                    broker_name=name,
                    cluster="c",
                )
                for name, replicas in self.replicas.items()
                if name in queues
            ],
            queue_datas=[
                QueueData(broker_name=name, perm=6, read_queue_nums=count, write_queue_nums=count)
                for name, count in queues.items()
            ],
        )
        return command.reply(request, body=bodies.encode(route))
