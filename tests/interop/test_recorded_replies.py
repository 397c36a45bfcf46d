"""The replies of ``tests/data/replies`` are those of official servers.

They contain times and counts, so codes, texts, header fields and the fields of bodies are compared.
"""

import asyncio
import os
from pathlib import Path

import pytest

import recorded_replies as recorded
from interop.java_cluster import JavaCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_recorded_replies_are_those_of_official_servers(version: str, tmp_path: Path) -> None:
    with JavaCluster(version, tmp_path, recorded.SETTINGS) as cluster:
        replies = asyncio.run(recorded.ask_all(cluster.address, cluster.namesrv, version))
    if os.environ.get("REPUT_SCRIPTS") == "write":
        recorded.write({version: replies})
    for row in recorded.rows():
        reply, wanted = replies[row["name"]], row[version]
        if reply is None or wanted is None:
            assert reply is wanted, row["name"]
            continue
        assert (reply.code, list(reply.fields)) == (wanted["code"], wanted["fields"]), row["name"]
        if row.get("text") is None:
            assert reply.remark == wanted["remark"], row["name"]
        assert not list(recorded.differences([wanted["body"]], [reply.body])), row["name"]
