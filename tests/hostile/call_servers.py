"""A broker and a proxy that 5.x clients connect to, watched while they are attacked.

    with CallScene(folder, PROFILES["guarded"]) as scene:
        with scene.watching("what is done") as watch:
            ...  # attack scene.ports["broker"], scene.ports["proxy"]
        watch.check()

Beside the probes of ``Scene`` there are some that make calls (``hostile.call_probe``): one of the
broker, one of the proxy.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from grpc_client import signed
from hostile.servers import CALL_STALL_MAX_S, ProbeProcess, Scene, Settings
from ports import free_port
from reput_cluster import texts

ROOT, ROOT_PASSWORD = "hostile-root", "hostile-password"
SIGNATURE = [(name.encode(), text.encode()) for name, text in signed(ROOT, ROOT_PASSWORD)]
"""Headers of a user who may do everything."""

PROFILES: Mapping[str, Settings] = {
    "open": {"enableLmq": True, "enableMultiDispatch": True, "enablePropertyFilter": True},
    "guarded": {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_PASSWORD}),
    },
}
"""Name -> settings in broker.conf."""


def proxy_settings(namesrv: str, port: int, settings: Settings) -> Settings:
    """Return the settings of a proxy before a broker with these settings."""
    proxy = {"namesrvAddr": namesrv, "grpcServerPort": port, "bindAddress": "127.0.0.1"}
    if not settings.get("authenticationEnabled"):
        return proxy
    user = {"accessKey": ROOT, "secretKey": ROOT_PASSWORD}
    return {
        **proxy,
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "innerClientAuthenticationCredentials": json.dumps(user),
    }


class CallScene(Scene):
    """A name server, a broker with a port for 5.x clients, and a proxy before it.

    Args:
        folder: Folder of the store, the logs, and the files of the probes.
        settings: Additional lines of broker.conf.
    """

    servers = ("broker", "namesrv", "proxy")

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.ports = {"broker": free_port(), "proxy": free_port()}
        self.is_guarded = bool((settings or {}).get("authenticationEnabled"))
        self._proxy_process: subprocess.Popen[bytes] | None = None
        super().__init__(
            folder,
            {**(settings or {}), "grpcServerPort": self.ports["broker"]},
            traffic=not self.is_guarded,
        )

    def start(self) -> None:
        """Start the stopped processes."""
        super().start()
        if self._proxy_process is None:
            settings = proxy_settings(self.namesrv, self.ports["proxy"], self._settings)
            self._proxy_process = self._launch("proxy", texts(settings))

    def kill(self) -> None:
        """Kill all processes."""
        super().kill()
        if self._proxy_process is not None:
            self._proxy_process.kill()
            self._proxy_process.wait()
            assert self._proxy_process.stdout is not None
            self._proxy_process.stdout.close()
            self._proxy_process = None

    def pids(self) -> dict[str, int]:
        assert self._proxy_process is not None
        return {**super().pids(), "proxy": self._proxy_process.pid}

    def is_running(self, name: str) -> bool:
        if name == "proxy":
            return self._proxy_process is not None and self._proxy_process.poll() is None
        return super().is_running(name.partition(" ")[0])

    def watch_all(self) -> None:
        """Start probes and traffic."""
        super().watch_all()
        for name, port in self.ports.items():
            probe = ProbeProcess(
                "broker calls" if name == "broker" else name,
                port,
                self.pids()[name],
                b"",
                self.folder,
                module="hostile.call_probe",
                stall_max_s=CALL_STALL_MAX_S,
            )
            self._probes[probe.name] = probe
            self.settle(probe)
