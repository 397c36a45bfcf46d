"""Each pair of a master and a slave, ours and official, with the same expectations."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.proxy import Link
from interop import java_cluster, pairs, wire
from interop.java_cluster import Settings
from interop.pairs import REPUT, Pair
from interop.wire import Remote
from ports import free_port_of_broker
from reput.format import batch
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.xdist_group("test_pairs"),
]

PAIRS = [(REPUT, REPUT)]
for version in java_cluster.broker_versions():
    PAIRS += [(REPUT, version), (version, REPUT)]
GUARD_S = 120.0
PAUSE_S = 0.02


# --- the end of a file ----------------------------------------------------------------------------

FILE_BYTES = 512 << 10
MESSAGE_BYTES_MAX = 256 << 10
BLANK_HEAD_BYTES = 8
BYTES_PER_S = 60_000
"""Rate of the log, so that the blank takes seconds."""
TINY_FILES: Settings = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxMessageSize": MESSAGE_BYTES_MAX,
}


@asynccontextmanager
async def slow_pair(master: str, slave: str, folder: Path) -> AsyncIterator[tuple[Pair, Link]]:
    """Run a pair whose log passes slowly: by a setting of our master, or by a proxy before Java's.

    Yields:
        The pair, and the proxy.
    """
    settings = dict(TINY_FILES)
    slave_settings = dict(TINY_FILES)
    port = free_port_of_broker()
    async with Link(f"127.0.0.1:{port + 1}", random.Random(1)) as link:
        if master == REPUT:
            settings |= {"haFlowControlEnable": True, "maxHaTransferByteInSecond": BYTES_PER_S}
        else:
            slave_settings["haMasterAddress"] = link.address
            link.down.bytes_per_s = BYTES_PER_S
        settings["listenPort"] = port
        with await asyncio.to_thread(Pair, master, slave, folder, settings, slave_settings) as pair:
            yield pair, link


async def send(remote: Remote, body: bytes, **more: Any) -> None:
    reply = await remote.send("T", body, **more)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def log_end(address: str) -> int:
    return await asyncio.to_thread(pairs.log_end, address)


@pytest.mark.parametrize(("master", "slave"), PAIRS)
async def test_a_slave_killed_inside_a_blank_continues(
    master: str, slave: str, tmp_path: Path
) -> None:
    """After a batch of more than 32 KiB; the next file begins with the largest message."""
    parts = [InnerMessage(0, b"%d" % number * 500, b"") for number in range(100, 140)]
    async with slow_pair(master, slave, tmp_path) as (pair, link):
        async with wire.connected(pair.master.address) as remote:
            await send(remote, batch.encode(parts), code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
            await send(remote, bytes(200 << 10))
            blank = await log_end(pair.master.address)
            await send(remote, b"x" * (MESSAGE_BYTES_MAX - 1024))
            assert await log_end(pair.master.address) > FILE_BYTES
            end = 0
            async with asyncio.timeout(GUARD_S):
                while end <= blank + BLANK_HEAD_BYTES:
                    await asyncio.sleep(PAUSE_S)
                    end = await log_end(pair.slave.address)
            assert end < FILE_BYTES, "the blank passed too fast"
            await asyncio.to_thread(pair.slave.kill_broker)
            link.heal()
            await asyncio.to_thread(pair.slave.start)
            for number in range(20):
                await send(remote, b"%d" % number)
        end = await asyncio.to_thread(pair.until_equal)
        await asyncio.to_thread(pair.slave.stop_broker)
        await asyncio.to_thread(pair.master.stop_broker)
        assert pairs.assert_same_stores(pair.master.store, pair.slave.store, end) == 2
