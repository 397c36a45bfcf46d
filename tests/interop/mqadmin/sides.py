"""Our cluster and the official one, the output of mqadmin with each, and allowed differences."""

import asyncio
import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import world
from interop import java_cluster, java_oracle, secured_cluster as secured
from interop.java_cluster import JavaClient, JavaSent, PushConsumer
from ports import free_port_of_broker
from reput.broker.server import Broker
from reput.broker.settings.config import load
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer

WAIT_S = 60

MASKS = (
    (re.compile(r"\n(\tat |\t\.\.\. )[^\n]*"), ""),  # a stack trace
    (re.compile(r"(For more information, please visit the url|See http)[^\n]*"), ""),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b[0-9A-F]{32,58}\b"), "MESSAGE"),
    (re.compile(r"\S+@c\d+\b"), "CLIENT"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?"), "TIME"),
    (re.compile(r"(storeSize|commitLogOffset|physicOffset|physicSize|bodyCRC)=\d+"), r"\1=N"),
    (re.compile(r"(CommitLog Offset: +)\d+"), r"\1N"),
    (re.compile(r"V\d_\d+_\d+\w*"), "VERSION"),
    # Differences of 5.x: a response code, offsets in ids, more properties, messages in flight.
    (re.compile(r"CODE: 29 "), "CODE: 1 "),
    (re.compile(r"@MESSAGE@\d+"), "@MESSAGE@N"),
    (re.compile(r"(MSG_REGION=DefaultRegion|TRACE_ON=true|WAIT=true)(, )?"), ""),
    (re.compile(r", \}"), "}"),
    (re.compile(r"TPS: [\d.]+"), "TPS: N"),
    (re.compile(r"(Avg RT: |\brt=)[\d.]+"), r"\1N"),
    (re.compile(r" +"), " "),
    (re.compile(r" $", re.MULTILINE), ""),
)


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


@dataclass
class Side:
    """A name server and a broker."""

    namesrv: str
    broker: str
    sent: list[JavaSent]
    """Results of the messages of topic ``Messages``."""


TRACES = {"traceTopicEnable": "true"}
"""Settings that create the trace topic at the start; otherwise it appears at different times."""


@dataclass
class Both:
    """Our cluster, the official one, and the admin tools."""

    java: JavaClient
    ours: Side
    official: Side
    conf: Path
    """Path of our broker.conf."""
    java_home: Path
    """Folder in which the tools look for their settings."""
    is_secured: bool = False
    """Whether our broker has access control."""

    @property
    def is_4(self) -> bool:
        """True if the tools and the official cluster are 4.x."""
        return self.java.version.startswith("4.")

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.official

    def run(self, side: Side, *arguments: str) -> str:
        words = [argument.replace("BROKER", side.broker) for argument in arguments]
        return self.java.mqadmin(*words, namesrv=side.namesrv)

    def prints(
        self,
        *arguments: str,
        of: Callable[[Side], list[str]] | None = None,
        is_sorted: bool = False,
        without: str = r"\Z.",
        masks: Sequence[tuple[str, str]] = (),
        is_same: bool = True,
    ) -> str:
        """Assert that mqadmin prints the same with both clusters; return the masked output.

        Args:
            arguments: Arguments; ``BROKER`` is replaced by the broker's address.
            of: Function that returns further arguments, which differ between the clusters.
            is_sorted: Sort the lines, because their order is that of a Java hash set.
            without: Expression; lines that contain it are left out.
            masks: Further allowed differences: expressions and their replacements.
            is_same: Whether to compare at all.
        """
        outputs = []
        for side in self.sides:
            text = masked(self.run(side, *arguments, *(of(side) if of is not None else [])))
            for pattern, instead in masks:
                text = re.sub(pattern, instead, text, flags=re.MULTILINE)
            lines = [line for line in text.splitlines() if not re.search(without, line)]
            outputs.append("\n".join(sorted(lines) if is_sorted else lines))
        assert outputs[0] == outputs[1] or not is_same
        return outputs[0]

    def await_text(
        self, text: str, *arguments: str, of: Callable[[Side], list[str]] | None = None
    ) -> None:
        """Wait until mqadmin prints a text with both clusters; clients act asynchronously."""
        deadline = time.monotonic() + WAIT_S
        for side in self.sides:
            more = of(side) if of is not None else []
            while text not in (output := self.run(side, *arguments, *more)):
                assert time.monotonic() < deadline, f"no {text!r} in {WAIT_S} s: {output}"

    @contextlib.contextmanager
    def running(self, side: Side, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a tool that never ends, in a separate process, which is killed at the end."""
        java = java_oracle.tool("java")
        jars = java_oracle.class_path(java_oracle.cluster_jars(self.java.version))
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        home = [f"-Drocketmq.home.dir={self.java_home}", f"-Duser.home={self.java_home}"]
        command = [java, *java_cluster.JVM, *java_cluster.SERVER_OPENS, *home, "-cp", jars, main]
        process = subprocess.Popen(
            [*command, *arguments, "-n", side.namesrv],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        alarm = threading.Timer(WAIT_S, process.kill)
        alarm.start()
        try:
            yield process
        finally:
            alarm.cancel()
            process.kill()
            process.communicate()

    def run_until(self, pattern: str, side: Side, *arguments: str) -> str:
        """Return the output of a tool that never ends, up to a line with this expression."""
        lines = []
        with self.running(side, *arguments) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if re.search(pattern, line):
                    return "".join(lines)
        raise AssertionError(f"no {pattern!r} in {WAIT_S} s: {lines}")

    def await_committed(self, side: Side, consumer: PushConsumer, group: str) -> None:
        """Wait until a group's offsets are at the end of both queues of ``Messages``."""
        deadline = time.monotonic() + WAIT_S
        wanted = {f"Messages@broker-a@{queue_id}": 3 for queue_id in range(2)}
        with self.java.admin(side.namesrv) as admin:
            while True:
                consumer.persist()  # one-way, without messages in the listener
                table = admin.call("examineConsumeStats", group)["offsetTable"]
                offsets = {queue: entry["consumerOffset"] for queue, entry in table.items()}
                if wanted.items() <= offsets.items():
                    return
                assert time.monotonic() < deadline, f"not {wanted} in {WAIT_S} s: {offsets}"

    def run_masked(self, *arguments: str) -> str:
        """Return the masked output of mqadmin with our cluster."""
        return masked(self.run(self.ours, *arguments))

    def table(self, side: Side, *arguments: str) -> dict[str, str]:
        """Return mqadmin's output as a dictionary of names and values."""
        lines = self.run(side, *arguments).splitlines()
        pairs = (re.split(r" *[:=] +", line, maxsplit=1) for line in lines)
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def secured_settings(version: str, home: Path) -> Mapping[str, object]:
    """Return the settings of our broker with the access control of an official version.

    Args:
        version: The version: 4.9.7 has access control 1.0, 5.5.0 has 2.0.
        home: Folder for the accounts of 1.0.
    """
    if version >= "5":
        return secured.SETTINGS[version]
    (home / "conf").mkdir(parents=True)
    (home / "conf/plain_acl.yml").write_text(secured.PLAIN_ACL)
    return {**secured.SETTINGS[version], "rocketmqHome": str(home)}


def write_tools_file(home: Path, access_key: str, secret_key: str) -> None:
    """Write the credentials that mqadmin reads for each command."""
    (home / "conf/tools.yml").write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")


@contextlib.contextmanager
def our_cluster(
    folder: Path, more: Mapping[str, object] | None = None
) -> Iterator[tuple[str, str, Path]]:
    """Run our name server and broker in a thread; yield their addresses and the broker.conf.

    Args:
        folder: Folder of both; it is made.
        more: Further settings of the broker.
    """
    folder.mkdir()
    conf = folder / "broker.conf"
    started: Future[tuple[str, str]] = Future()
    is_over = threading.Event()

    async def serve() -> None:
        settings = NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(folder / "kvConfig.json"),
            config_store_path=str(folder / "namesrv.properties"),
        )
        async with NameServer(settings) as server:
            namesrv = f"127.0.0.1:{server.port}"
            known = {
                "brokerName": "broker-a",
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": free_port_of_broker(),
                "namesrvAddr": namesrv,
                "storePathRootDir": folder / "store",
                **TRACES,
                **java_cluster.SMALL_FILES,
                **(more or {}),
            }
            conf.write_text("".join(f"{key}={value}\n" for key, value in known.items()))
            read = load(conf)
            broker = Broker(read.broker, read.store, config_path=str(conf), access=read.access)
            async with broker:
                while world.CLUSTER not in await asyncio.to_thread(
                    java_cluster.cluster_text, namesrv
                ):
                    await asyncio.sleep(0.01)
                started.set_result((namesrv, broker.identity.address))
                await asyncio.to_thread(is_over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # passed to the test
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield (*started.result(WAIT_S), conf)
    finally:
        is_over.set()
        thread.join()
