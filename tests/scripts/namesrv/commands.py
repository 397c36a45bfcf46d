"""Commands of the name server's scripts: clients of a name server in this process.

Its loops do not run: ``advance`` and ``tick`` expire silent brokers and clean up.
"""

import json
import logging
import zlib
from pathlib import Path

from reput.clock import ManualClock
from reput.errors import ReputError
from reput.format.codes import LanguageCode, RequestCode
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.namesrv import config
from reput.namesrv.server import NameServer
from reput.remoting.channel import Channel
from reput.remoting.time_slices import run_whole
from scripts.wire import (
    START_MS,
    Clients,
    Limits,
    Logs,
    ScriptServer,
    duration_ms,
    shown_body,
    shown_reply,
    with_times,
)

DATA = Path(__file__).parents[2] / "data" / "remoting"
"""Bodies of registrations by Java: topics TopicA, %RETRY%group and Ordered."""


class Commands:
    """A name server and its clients.

    Args:
        folder: The folder of its files.
        subject: Not used.
    """

    ERRORS = (ReputError,)

    def __init__(self, folder: Path, subject: str) -> None:
        self._folder = folder
        self._clock = ManualClock(START_MS)
        self._server: NameServer | None = None
        self._settings: dict[str, str] = {}
        self._clients = Clients(self._connect, lambda: None)
        self._limits = Limits()
        self._logs = Logs(self._clients.printed, str(folder))
        logging.getLogger("reput").addHandler(self._logs)

    async def close(self) -> None:
        try:
            if self._server is not None:
                await self.stop()
        finally:
            self._limits.restore()
            logging.getLogger("reput").removeHandler(self._logs)

    async def open(self, **settings: str) -> list[str]:
        """Start the name server. Settings have Java's names, and stay for later starts."""
        self._settings |= settings
        files = {
            "kvConfigPath": str(self._folder / "kvConfig.json"),
            "configStorePath": str(self._folder / "namesrv.properties"),
        }
        source = self._folder / "namesrv.conf"
        source.write_text("".join(f"{k}={v}\n" for k, v in (files | self._settings).items()))
        current, _ = config.load(str(source), environment={})
        self._server = NameServer(current, clock=self._clock)
        self._server._remoting = ScriptServer(self._server, state=self._server.serving)
        await self._server.start()
        self._server.serving.slices.slice_s = 3600.0  # interrupt no request
        return self._received()

    async def stop(self) -> list[str]:
        """Stop."""
        assert self._server is not None
        server, self._server = self._server, None
        await server.stop()
        self._clients.forget_all()
        return self._received()

    async def restart(self, **settings: str) -> list[str]:
        """Stop and open."""
        return [*await self.stop(), *await self.open(**settings)]

    async def advance(self, duration: str) -> list[str]:
        """Advance the clock, and expire silent brokers."""
        self._clock.advance(duration_ms(duration))
        return await self.tick()

    def limit(self, name: str, maximum: int) -> None:
        """Change a limit that has no setting."""
        self._limits.change(name, maximum)

    async def set_clock(self, clock_time: str) -> None:
        """Set the time of day, as an operator does."""
        self._clock.set(START_MS + duration_ms(clock_time[1:]))

    async def tick(self) -> list[str]:
        """Expire silent brokers, and clean up."""
        while self._running.expire():
            pass
        await self._clients.settle()
        return self._received()

    async def connect(self, client: str, address: str) -> None:
        """Connect a client from an address."""
        self._clients.named(client, address)

    async def disconnect(self, client: str = "c") -> list[str]:
        """Close the connection of a client."""
        self._clients.close(client)
        await self._clients.settle()
        return self._received()

    async def ask(
        self,
        code: str,
        body: bytes = b"",
        client: str = "c",
        only: str | None = None,
        oneway: bool = False,
        serialization: str = "JSON",
        version: int = 407,
        **fields: str,
    ) -> list[str]:
        """Send a request by its code or the code's name; print the reply."""
        number = int(code) if code.isdecimal() else RequestCode[code]
        request = Command(
            number, ext_fields=fields, body=body, flag=IS_ONEWAY * oneway, version=version,
            serialization=Serialization[serialization], language=LanguageCode.JAVA,
        )  # fmt: skip
        lines = await self._clients.ask(
            self._clients.named(client), request, lambda reply: shown_reply(reply, only=only)
        )
        lines = [with_times(line).replace(str(self._folder), "ROOT") for line in lines]
        return [*lines, *self._received()]

    async def register(
        self,
        broker: str,
        *topics: str,
        address: str = "10.0.0.1:10911",
        cluster: str = "C",
        brokerId: str = "0",
        ha: str = "10.0.0.1:10912",
        dataVersion: int = 1,
        stateVersion: int = 0,
        filters: str = "",
        client: str = "c",
        **fields: str,
    ) -> list[str]:
        """Register a broker: 103. A topic is ``name:queues:permission:flag``, or shorter."""
        table = {}
        for topic in topics:
            name, queues, perm, flag = [*topic.split(":"), *["4", "6", "0"][topic.count(":") :]]
            table[name] = {
                "order": False, "perm": int(perm), "readQueueNums": int(queues),
                "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": int(flag),
                "writeQueueNums": int(queues),
            }  # fmt: skip
        version = {"counter": dataVersion, "timestamp": 5, "stateVersion": stateVersion}
        body = {
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table},
            "filterServerList": [name for name in filters.split(",") if name],
        }
        known = {
            "brokerName": broker, "brokerAddr": address, "clusterName": cluster,
            "brokerId": brokerId, "haServerAddr": ha, "compressed": "false", "bodyCrc32": "0",
        }  # fmt: skip
        data = json.dumps(body, separators=(",", ":")).encode()
        return await self.ask("REGISTER_BROKER", data, client, **(known | fields))

    async def register_recorded(
        self, file: str, crc: str = "right", version: int = 407, **fields: str
    ) -> list[str]:
        """Register broker-a with a body by Java; ``crc`` is right or wrong."""
        body = (DATA / file).read_bytes()
        checksum = (zlib.crc32(body) & 0x7FFFFFFF) + (crc == "wrong")
        known = {
            "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C",
            "brokerId": "0", "haServerAddr": "10.0.0.1:10912", "compressed": "false",
            "bodyCrc32": str(checksum),
        }  # fmt: skip
        if version < 100:  # then the body is the table of topics
            body = json.dumps(json.loads(body)["topicConfigSerializeWrapper"]).encode()
            known["bodyCrc32"] = "0"
        return await self.ask("REGISTER_BROKER", body, version=version, **(known | fields))

    async def unregister(
        self,
        broker: str,
        address: str = "10.0.0.1:10911",
        cluster: str = "C",
        brokerId: str = "0",
    ) -> list[str]:
        """Unregister a broker: 104."""
        return await self.ask(
            "UNREGISTER_BROKER", brokerName=broker, brokerAddr=address, clusterName=cluster,
            brokerId=brokerId,
        )  # fmt: skip

    async def route(self, topic: str) -> list[str]:
        """Query the route of a topic, and print it in short: 105."""
        route = run_whole(self._running.routes.route(topic))
        if route is None:
            return ["(none)"]
        lines = [
            f"{broker.cluster} {broker.broker_name} "
            + " ".join(f"{number}={text}" for number, text in sorted(broker.broker_addrs.items()))
            for broker in route.broker_datas
        ]
        lines += [
            f"{queue.broker_name} read={queue.read_queue_nums} write={queue.write_queue_nums} "
            f"perm={queue.perm}"
            for queue in route.queue_datas
        ]
        lines += [
            f"filter {address} {names}" for address, names in route.filter_server_table.items()
        ]
        return lines

    async def topics(self) -> list[str]:
        """Print the names of all topics."""
        return [" ".join(run_whole(self._running.routes.topics())) or "(none)"]

    async def counts(self) -> list[str]:
        """Print the sizes of the table, and how often a broker replaced another one."""
        routes = self._running.routes
        return [
            f"brokers={routes.broker_count} addresses={routes.address_count} "
            f"topics={routes.topic_count} takeovers={routes.takeover_count}"
        ]

    async def cat(self, path: str, only: str | None = None) -> list[str]:
        """Print a file."""
        text = (self._folder / path).read_text().replace(str(self._folder), "ROOT")
        return shown_body(text.encode(), only)

    async def make_folder(self, path: str) -> None:
        """Create a folder in place of a file."""
        (self._folder / path).mkdir()

    async def remove_folder(self, path: str) -> None:
        """Remove this folder."""
        (self._folder / path).rmdir()

    @property
    def _running(self) -> NameServer:
        assert self._server is not None, "the name server is not open"
        return self._server

    def _connect(self) -> Channel:
        return self._running._remoting._new_channel()

    def _received(self) -> list[str]:
        lines, self._clients.printed[:] = [with_times(line) for line in self._clients.printed], []
        return lines
