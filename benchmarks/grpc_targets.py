"""The servers of 5.x clients under load: the official proxy in local mode, and ours."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import broker_targets, java
from benchmarks.broker_targets import BrokerMissing, Target
from reput.client.blocking import Admin
from reput.format.bodies import SubscriptionGroupConfig

JAVA = "java_proxy_5_5_0"
OURS = "reput"
START_S = 120.0
HEAP_MEGABYTES = 2048
QUEUES = 4


@contextlib.contextmanager
def servers(folder: Path, *, is_ours_alone: bool = False) -> Iterator[list[Target]]:
    """Run the servers that are available; report a missing one on stderr.

    ``Target.address`` is the port of gRPC.
    """
    with contextlib.ExitStack() as stack:
        targets = []
        for start in (_ours,) if is_ours_alone else (_official, _ours):
            try:
                targets.append(stack.enter_context(start(folder)))
            except BrokerMissing as reason:
                print(f"without {reason}", file=sys.stderr, flush=True)
        yield targets


def create_topic(target: Target, name: str) -> None:
    """Create a topic for normal messages, with four queues."""
    with Admin(target.namesrv) as admin:
        admin.create_topic(name, queue_count=QUEUES, attributes={"message.type": "NORMAL"})


def create_group(target: Target, name: str) -> None:
    """Create a consumer group: the official proxy in local mode refuses unknown ones."""
    with Admin(target.namesrv) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name=name))


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Target]:
    grpc_port = broker_targets.free_port(1)
    settings = {
        **broker_targets.OFFICIAL,
        "grpcServerPort": grpc_port,
        "reputConnectionsMax": 30_000,  # all clients have one address here
        "reputConnectionsPerAddressMax": 30_000,
    }
    with broker_targets.ours(folder, settings) as broker:
        address = f"127.0.0.1:{grpc_port}"
        yield Target(OURS, address, broker.namesrv, broker.pid, broker.start_s)


@contextlib.contextmanager
def _official(folder: Path) -> Iterator[Target]:
    """Run the name server and the proxy of Java; the broker is in the proxy's process."""
    jars = java.proxy_jars()
    if jars is None:
        raise BrokerMissing("the official proxy")
    root = folder / JAVA
    for name in ("conf", "store"):
        (root / name).mkdir(parents=True)
    namesrv_port, port = broker_targets.free_port(1), broker_targets.free_port(4)
    grpc_port, remoting_port = broker_targets.free_port(1), broker_targets.free_port(1)
    namesrv, address = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{grpc_port}"
    broker_targets.write_settings(
        root / "broker.conf",
        {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "namesrvAddr": namesrv,
            "storePathRootDir": root / "store",
            "storePathCommitLog": root / "store/commitlog",
            **broker_targets.OFFICIAL,
        },
    )
    broker_targets.write_settings(root / "namesrv.conf", {"listenPort": namesrv_port})
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": grpc_port,
        "remotingListenPort": remoting_port,
        "namesrvAddr": namesrv,
    }
    (root / "rmq-proxy.json").write_text(json.dumps(proxy), encoding="utf-8")
    _write_logback(root / "conf")
    heap = f"{HEAP_MEGABYTES}m"
    main = ("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", namesrv)
    start = time.perf_counter()
    with (
        _java(root, jars, "namesrv", ("-Xmx256m",), "org.apache.rocketmq.namesrv.NamesrvStartup",
              "-c", "namesrv.conf"),
        _java(root, jars, "proxy", (f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"), *main,
              "-bc", "broker.conf", "-pc", "rmq-proxy.json") as process,
    ):  # fmt: skip
        for place in (namesrv, address):
            _await(root, place, process)
        yield Target(JAVA, address, namesrv, process.pid, time.perf_counter() - start)


def _write_logback(folder: Path) -> None:
    """Log warnings alone, as the configuration of the broker benchmarks."""
    text = (java.TESTS / "interop/servers.logback.xml").read_text(encoding="utf-8")
    text = text.replace('"ch.qos', '"org.apache.rocketmq.logging.ch.qos')
    for name in ("rmq.logback.xml", "rmq.proxy.logback.xml"):
        (folder / name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _java(
    root: Path, jars: Path, name: str, options: tuple[str, ...], *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    opens = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
    command = ["java", *options, "-XX:MaxDirectMemorySize=4g", "-Xlog:disable"]
    for package in opens:
        command += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
        command += ["--add-exports", f"java.base/{package}=ALL-UNNAMED"]
    command += [f"-Drocketmq.home.dir={root}", f"-Duser.home={root}"]
    command += [f"-Drmq.logback.configurationFile={root / 'conf/rmq.logback.xml'}"]
    command += ["-cp", str(jars / "*"), *words]
    environment: Mapping[str, str] = {**os.environ, "ROCKETMQ_HOME": str(root)}
    with (root / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(command, cwd=root, stdout=out, stderr=out, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await(root: Path, address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the proxy listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (root / "proxy.out").read_text(errors="replace")[-800:]
            raise BrokerMissing(f"the official proxy: it does not listen. {tail}")
        threading.Event().wait(0.2)
