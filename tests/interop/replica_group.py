"""Official brokers of one name under a controller, ours or the official one."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from interop import java_oracle
from interop.java_cluster import JVM, NO_TLS, SERVER_OPENS, JavaCluster, write_logback
from interop.java_oracle import JavaError
from ports import free_port

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


class Group:
    """Official brokers of one name.

    Args:
        folder: Folder for their folders.
        namesrv: Address of the name server.
        controller: Address of the controller.
    """

    def __init__(self, folder: Path, namesrv: str, controller: str) -> None:
        self._folder = folder
        self.namesrv = namesrv
        self.controller = controller
        self.brokers: list[JavaCluster] = []

    def add(self, **settings: str | int | bool) -> JavaCluster:
        """Start another broker, and wait until the name server knows it."""
        number = len(self.brokers) + 1
        wanted = {
            "brokerName": NAME,
            "brokerId": -1,
            "brokerRole": "SLAVE",
            "enableControllerMode": True,
            "controllerAddr": self.controller,
            "allAckInSyncStateSet": True,
            "registerNameServerPeriod": 10_000,
            **settings,
        }
        folder = self._folder / f"broker-{number}"
        broker = JavaCluster(VERSION, folder, wanted, namesrv=self.namesrv, heap_megabytes=256)
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
