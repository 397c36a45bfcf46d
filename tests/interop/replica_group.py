"""Brokers of one name, official ones and ours, under a controller, ours or the official one."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from interop import java_oracle
from interop.java_cluster import (
    JVM,
    NO_TLS,
    SERVER_OPENS,
    SMALL_FILES,
    JavaCluster,
    write_logback,
)
from interop.java_oracle import JavaError
from ports import free_port, free_ports

VERSION = "5.5.0"
NAME = "broker-a"
START_S = 120.0


class JavaController:
    """A running official controller with one member, n0. Use it as a context.

    Args:
        folder: Folder of its state, log and settings.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(folder / "DledgerController"),
            "mappedFileSize": 1 << 20,
        }
        folder.mkdir(parents=True, exist_ok=True)
        configuration = folder / "conf"
        configuration.mkdir(exist_ok=True)
        write_logback(configuration)
        lines = [f"{key}={value}\n" for key, value in self.settings.items()]
        (folder / "controller.conf").write_text("".join(lines), encoding="utf-8")
        libraries = java_oracle.class_path(java_oracle.cluster_jars(VERSION))
        command = [java_oracle.tool("java"), "-Xms128m", "-Xmx128m", *JVM, NO_TLS, *SERVER_OPENS]
        command += [f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}"]
        command += [f"-Drmq.logback.configurationFile={configuration / 'rmq.logback.xml'}"]
        command += ["-cp", libraries, "org.apache.rocketmq.controller.ControllerStartup"]
        command += ["-c", "controller.conf"]
        with (folder / "controller.out").open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder
            )

    def __enter__(self) -> "JavaController":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class OurBroker:
    """A broker of ours, in a process, with the methods of ``JavaCluster`` that a group needs.

    Args:
        folder: Its folder.
        settings: Its broker.conf.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        self.store = folder / "store"
        port = free_ports(4) + 2
        self.address = f"127.0.0.1:{port}"
        own = {"listenPort": port, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1"}
        values = {**SMALL_FILES, **settings, **own, "storePathRootDir": self.store}
        folder.mkdir(parents=True)
        lines = [
            f"{key}={str(value).lower() if value is True else value}\n"
            for key, value in values.items()
        ]
        (folder / "broker.conf").write_text("".join(lines), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def broker_pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker, and wait until it has a role."""
        with (self.folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reput", "broker", "-c", "broker.conf"],
                cwd=self.folder, stdout=out, stderr=out,
            )  # fmt: skip

        def serves() -> bool:
            text = (self.folder / "out").read_text()
            if self._process is None or self._process.poll() is not None:
                raise JavaError(f"our broker did not start: {text}")
            return "boot success" in text

        until(serves, "our broker serves")

    def kill_broker(self) -> None:
        """Kill the broker; ``start`` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Group:
    """Brokers of one name.

    Args:
        folder: Folder for their folders.
        namesrv: Address of the name server.
        controller: Address of the controller.
    """

    def __init__(self, folder: Path, namesrv: str, controller: str) -> None:
        self._folder = folder
        self.namesrv = namesrv
        self.controller = controller
        self.brokers: list[JavaCluster | OurBroker] = []
        self.kinds: dict[int, str] = {}
        """Number of a broker, from 1 -> ``ours``, or the version of an official one."""

    def add(self, **settings: str | int | bool) -> "JavaCluster | OurBroker":
        """Start another broker, and wait until it serves."""
        number = len(self.brokers) + 1
        wanted: dict[str, str | int | bool] = {
            "brokerName": NAME,
            "brokerClusterName": "DefaultCluster",
            "namesrvAddr": self.namesrv,
            "brokerId": -1,
            "brokerRole": "SLAVE",
            "enableControllerMode": True,
            "controllerAddr": self.controller,
            "allAckInSyncStateSet": True,
            "registerNameServerPeriod": 10_000,
            **settings,
        }
        folder = self._folder / f"broker-{number}"
        kind = self.kinds.get(number, VERSION)
        broker: JavaCluster | OurBroker
        if kind == "ours":
            broker = OurBroker(folder, wanted)
        else:
            broker = JavaCluster(kind, folder, wanted, namesrv=self.namesrv, heap_megabytes=256)
        self.brokers.append(broker)
        return broker

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill_broker()


@contextlib.contextmanager
def group(folder: Path, namesrv: str, controller: str) -> Iterator[Group]:
    made = Group(folder, namesrv, controller)
    try:
        yield made
    finally:
        made.close()


def until(is_so: Callable[[], bool], what: str, within_s: float = START_S) -> None:
    """Wait until something of Java's is so. Raises ``JavaError``."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise JavaError(f"after {within_s} s: {what}")
        threading.Event().wait(0.1)
