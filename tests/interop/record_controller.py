"""Record ``tests/data/controller``: ``python -m interop.record_controller``, in ``tests/``.

From an official controller 5.5.0: its answers to the requests of ``controller_script``, the
requests of an official broker under it, and what mqadmin prints about a group.
"""

import asyncio
import contextlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import controller_script
from interop.java_cluster import JavaClient, JavaMessage
from interop.replica_group import NAME, VERSION, Group, JavaController, group, until
from reput.format import command
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer

DATA = Path(__file__).parents[1] / "data" / "controller"
CLUSTER = "DefaultCluster"
MASKS = (
    (re.compile(r"\n(\tat |\t\.\.\. )[^\n]*"), ""),  # a stack trace
    (re.compile(r"\nFor more information[^\n]*"), ""),
)
_REQUESTS = (1005, 1012, 1013, 1003, 904, 1002, 1004)
"""Requests of a broker that starts alone, in the order of the first ones."""


def mqadmin_texts(java: JavaClient, made: Group, controller: str) -> dict[str, str]:
    """Return what mqadmin prints while a group forms, changes its master, and loses it.

    Args:
        java: Runs mqadmin.
        made: A group without brokers.
        controller: Address of its controller.
    """
    texts: dict[str, str] = {}

    def ask(*arguments: str) -> str:
        printed = java.mqadmin(*arguments, namesrv=made.namesrv)
        for pattern, instead in MASKS:
            printed = pattern.sub(instead, printed)
        for number, broker in enumerate(made.brokers, 1):
            printed = printed.replace(broker.address, f"BROKER-{number}")
        return printed.replace(controller, "CONTROLLER")

    def keep(name: str, *arguments: str) -> None:
        texts[name] = ask(*arguments)

    of_group = ("-a", controller, "-bn", NAME, "-c", CLUSTER)
    in_sync = ("getSyncStateSet", "-a", controller, "-b", NAME)

    def has(text: str) -> None:
        until(lambda: text in ask(*in_sync), text)

    def epochs(count: int) -> str:
        """Return the epochs of all brokers, which mqadmin prints in any order."""
        wanted = f"EpochEntry{{epoch={count}"
        until(lambda: ask("getBrokerEpoch", "-b", NAME).count(wanted) == 2, wanted)
        return "\n\n".join(sorted(ask("getBrokerEpoch", "-b", NAME).strip().split("\n\n")))

    made.add()
    made.add()
    has("#SyncStateSetNums\t2")
    keep("metadata", "getControllerMetaData", "-a", controller)
    keep("config", "getControllerConfig", "-a", controller)
    keep("in sync", *in_sync)
    texts["epochs"] = epochs(1)
    producer = java.producer(made.namesrv)
    send = [JavaMessage("T", b"before")]
    assert producer.send(send)[0].status == "SEND_OK"
    keep("elect an unknown broker", "electMaster", *of_group, "-b", "7")
    keep("elect the master", "electMaster", *of_group, "-b", "1")
    keep("elect the other", "electMaster", *of_group, "-b", "2")
    has("#MasterBrokerId\t2")
    has("#SyncStateSetNums\t2")
    keep("in sync after the election", *in_sync)
    texts["epochs after the election"] = epochs(2)
    keep("clean a living broker", "cleanBrokerMetadata", *of_group, "-b", "1")
    made.brokers[1].kill_broker()
    has("#MasterBrokerId\t1")
    keep("in sync after the death of the master", *in_sync)

    def is_sent() -> bool:
        with contextlib.suppress(Exception):
            return bool(producer.send([JavaMessage("T", b"after")])[0].status == "SEND_OK")
        return False

    until(is_sent, "a send to the new master")
    keep("clean the dead broker", "cleanBrokerMetadata", *of_group, "-b", "2")
    keep("in sync after cleaning", *in_sync)
    keep("clean a living group", "cleanBrokerMetadata", *of_group)
    return texts


class _Tap:
    """A port before a controller, which keeps the requests."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.requests: list[dict[str, Any]] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        assert len(self._address) == len(self._target)
        return self._address

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))

        async def back() -> None:
            while data := await there_reader.read(65_536):
                # The broker is to stay here, not to go to the leader that is named to it.
                writer.write(data.replace(self._target.encode(), self._address.encode()))

        returning = asyncio.create_task(back())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size))
                self._keep(frame)
                there_writer.write(size + frame)
        returning.cancel()
        there_writer.close()
        writer.close()

    def _keep(self, frame: bytes) -> None:
        request = command.decode(memoryview(frame))
        self.requests.append(
            {
                "code": request.code,
                "flag": request.flag,
                "fields": request.ext_fields,
                "body": request.body.decode(),
            }
        )


async def _record(folder: Path) -> None:
    settings = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
    )
    async with NameServer(settings) as names:
        namesrv = f"127.0.0.1:{names.port}"
        with JavaController(folder / "first") as controller:
            await _listening(controller.address)
            _write("replies", await controller_script.play(controller.address))
        with JavaController(folder / "second") as controller:
            await _listening(controller.address)
            tap = _Tap(controller.address)
            address = await tap.start()
            with group(folder / "tapped", namesrv, address) as made:
                await asyncio.to_thread(made.add)
                async with asyncio.timeout(60):
                    while {1002, 1004} - {request["code"] for request in tap.requests}:
                        await asyncio.sleep(0.1)
            first = {}
            for request in tap.requests:
                first.setdefault(request["code"], request)
            _write("requests", [first[code] for code in _REQUESTS])
        with (
            JavaController(folder / "third") as controller,
            group(folder / "group", namesrv, controller.address) as made,
            JavaClient(VERSION, folder / "client") as java,
        ):
            await _listening(controller.address)
            texts = await asyncio.to_thread(mqadmin_texts, java, made, controller.address)
            _write("mqadmin", texts)


async def _listening(address: str) -> None:
    """Wait until a controller leads."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Exception):
                answers = await controller_script.first_answer(address)
                if answers.code == 0:
                    return
            await asyncio.sleep(0.2)


def _write(name: str, value: object) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, ensure_ascii=False)
    (DATA / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_record(Path(folder)))
