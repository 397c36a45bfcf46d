"""The official proxy 5.5.0, beside a broker or with the broker in its process.

with JavaCluster("5.5.0", tmp_path) as cluster:
    with JavaProxy(cluster) as proxy:  # in cluster mode
        ...  # 5.x clients, at proxy.endpoint
    with JavaProxy(cluster, is_local=True) as proxy:  # the proxy runs the broker of the folder
        ...
"""

import json
import subprocess
import time
from typing import Self

from interop import java_oracle
from interop.clusters import until
from interop.java_cluster import (
    JVM,
    NO_TLS,
    SERVER_OPENS,
    START_S,
    STOP_S,
    JavaCluster,
    cluster_text,
)
from interop.java_oracle import JavaError
from ports import free_port

READY = "rocketmq-proxy startup successfully"
POLL_S = 0.2


class JavaProxy:
    """A running proxy, without TLS.

    Args:
        cluster: The official name server, and the broker.
        is_local: The broker runs in the process of the proxy: its own process is stopped.

    Raises:
        JavaUnavailable: A tool or the jars are missing.
        JavaError: It did not start in time; the text contains its output.
    """

    def __init__(self, cluster: JavaCluster, *, is_local: bool = False) -> None:
        self._folder = cluster.folder
        if is_local:
            cluster.stop_broker()
        port = free_port()
        self.endpoint = f"127.0.0.1:{port}"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "namesrvAddr": cluster.namesrv,
        }
        (self._folder / "rmq-proxy.json").write_text(json.dumps(settings), encoding="utf-8")
        log = (self._folder / "conf/rmq.logback.xml").read_text(encoding="utf-8")
        (self._folder / "conf/rmq.proxy.logback.xml").write_text(log, encoding="utf-8")
        mode = ["-pm", "local", "-bc", "broker.conf"] if is_local else ["-pm", "cluster"]
        command = [java_oracle.tool("java"), "-Xmx512m", "-XX:MaxDirectMemorySize=2g", *JVM]
        command += [NO_TLS, *SERVER_OPENS]
        command += [f"-Drocketmq.home.dir={self._folder}", f"-Duser.home={self._folder}"]
        command += ["-cp", java_oracle.class_path(java_oracle.proxy_jars())]
        command += ["org.apache.rocketmq.proxy.ProxyStartup", *mode]
        command += ["-pc", "rmq-proxy.json", "-n", cluster.namesrv]
        self._out = self._folder / "proxy.out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._folder
            )
        self._await_start()
        if is_local:
            until(lambda: cluster.address in cluster_text(cluster.namesrv))

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_S
        while READY not in (text := self._out.read_text(errors="replace")):
            try:
                status: int | None = self.process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                status = None
            if status is not None or time.monotonic() > deadline:
                self.kill()
                raise JavaError(f"the proxy does not start (exit code {status})\n{text[-3000:]}")

    def stop(self) -> None:
        """Stop it as an operator would."""
        self.process.terminate()
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
