"""Record ``tests/data/namesrv/members.json``: ``python -m interop.record_namesrv``, in ``tests/``.

The official name server 5.5.0 answers ``member_script``, with ``notifyMinBrokerIdChanged=true``.
"""

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path

import member_script
from interop import java_oracle
from interop.java_cluster import JVM, NO_TLS, SERVER_OPENS, write_logback
from interop.replica_group import VERSION
from ports import free_port

FILE = Path(__file__).parents[1] / "data" / "namesrv" / "members.json"


async def _record(folder: Path) -> None:
    port = free_port()
    write_logback(folder)
    (folder / "namesrv.conf").write_text(f"listenPort={port}\nnotifyMinBrokerIdChanged=true\n")
    libraries = java_oracle.class_path(java_oracle.cluster_jars(VERSION))
    command = [java_oracle.tool("java"), "-Xmx128m", *JVM, NO_TLS, *SERVER_OPENS]
    command += [f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}"]
    command += [f"-Drmq.logback.configurationFile={folder / 'rmq.logback.xml'}"]
    command += ["-cp", libraries, "org.apache.rocketmq.namesrv.NamesrvStartup"]
    command += ["-c", "namesrv.conf"]
    with (folder / "out").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)  # noqa: ASYNC220
    try:
        async with asyncio.timeout(60):
            while "boot success" not in (folder / "out").read_text():
                await asyncio.sleep(0.1)
        answers = await member_script.play(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_record(Path(name)))
