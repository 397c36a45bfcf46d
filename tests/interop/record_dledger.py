"""Record ``tests/data/dledger``: in ``tests/``, ``python -m interop.record_dledger [STORE]``.

Each store is written by official brokers with DLedger (or RocksDB), and described by official
clients of the same version, which read every message of every queue before the brokers stop.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from interop.clusters import until
from interop.java_cluster import (
    ClientError,
    JavaClient,
    JavaCluster,
    JavaMessage,
    Queue,
    Settings,
)
from interop.test_timer import TimerOracle
from interop.test_transactions import TransactionOracle
from ports import free_port
from reput.format import names

DATA = Path(__file__).parents[1] / "data" / "dledger"
VERSIONS = ("4.9.7", "5.5.0")
SIZES: Settings = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 40_000,
}
SETTINGS: Settings = {
    **SIZES,
    "messageDelayLevel": "1s 1s 1s 10000d",
    "flushConsumerOffsetInterval": 200,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "brokerIP1": "127.0.0.1",
}
TOPIC, GROUP, DELAYED, TRANSACTIONS = "Orders", "readers", "Delayed", "Transactions"
ROOM_BYTES = 40  # after the data of a file: more zeros are cut, and made again


def dledger(port: int, number: int = 0, ports: tuple[int, ...] = ()) -> Settings:
    """Return the settings of a member of a group; alone by default."""
    peers = ports or (port,)
    return {
        "enableDLegerCommitLog": True,
        "dLegerGroup": "broker-a",
        "dLegerPeers": ";".join(f"n{i}-127.0.0.1:{peer}" for i, peer in enumerate(peers)),
        "dLegerSelfId": f"n{number}",
    }


# --- messages -------------------------------------------------------------------------------------


def fill(java: JavaClient, namesrv: str, work: Path, mark: str, *, few: bool = False) -> None:
    """Send messages of many kinds, and consume some."""
    until(lambda: _is_ready(java, namesrv))
    with java.admin(namesrv) as admin:
        for topic in (TOPIC, DELAYED, TRANSACTIONS):
            attributes = [{}] if java.version >= "5" else []
            admin.call("createTopic", "DefaultCluster", topic, 3, *attributes)
    queues = [Queue(TOPIC, "broker-a", number) for number in range(3)]
    with java.producer(namesrv) as producer:
        for number in range(6 if few else 60):
            text = f"{mark} {number} ".encode()
            message = JavaMessage(
                TOPIC,
                text + b"." * (number * 29),
                tags=("paid", "refunded", None)[number % 3],
                keys=f"{mark}-{number} shared",
                properties={"colour": "blå", "n": str(number)},
                flag=number,
            )
            producer.send([message], queue=queues[number % 3])
        if not few:
            large = hashlib.shake_128(mark.encode()).digest(30_000)
            producer.send([JavaMessage(TOPIC, large, keys="large")])
            producer.send([JavaMessage(TOPIC, b"compressed " * 1000, keys="compressed")])
        batch = [JavaMessage(TOPIC, f"{mark} batch {n}".encode(), tags="b") for n in range(5)]
        producer.send(batch, "batch", queue=queues[0])
        for level in (1, 2, 4):
            body = f"{mark} level {level}".encode()
            producer.send([JavaMessage(DELAYED, body, delay_level=level, keys=mark)])
    timer_count = 0
    if java.version == "5.5.0" and not few:
        _send_timers(namesrv, work, mark)
        timer_count = 1
    with contextlib.closing(TransactionOracle(java.version, work)) as transactions:
        number = transactions.ask_one("start", namesrv, f"transactions-{mark}")
        for local in ("commit", "rollback", "unknown"):
            body = f"{mark} {local}"
            transactions.ask_one("send", number, TRANSACTIONS, body, local, "unknown", "")
        transactions.ask_one("close", number)
    with java.push_consumer(namesrv, GROUP, TOPIC, laters=1) as consumer:
        until(lambda: any(message.reconsume_times for message in consumer.received))
        consumer.persist()
    with java.push_consumer(namesrv, "of-delays", DELAYED) as consumer:
        consumer.take(2 + timer_count)
        consumer.persist()


def _send_timers(namesrv: str, work: Path, mark: str) -> None:
    """Send messages with times of delivery: one that comes, and one that waits."""
    with contextlib.closing(TimerOracle("5.5.0", work)) as timers:
        for delay_s, body in ((1, "soon"), (200_000, "later")):
            timers.ask_one("send", namesrv, DELAYED, f"{mark} {body}", "sec", delay_s)


def _is_ready(java: JavaClient, namesrv: str) -> bool:
    try:
        with java.producer(namesrv) as producer:
            return bool(producer.send([JavaMessage("Ready", b"ready")]))
    except ClientError:
        return False


# --- the manifest ---------------------------------------------------------------------------------


def described(java: JavaClient, namesrv: str) -> dict[str, Any]:
    """Return queues with all messages, consumer offsets and lookups, as Java's clients see them."""
    with java.admin(namesrv) as admin, java.pull_consumer(namesrv, "describer") as consumer:
        topics = sorted(admin.call("fetchAllTopicList")["topicList"])
        topics += [names.SCHEDULE_TOPIC, names.HALF_TOPIC]
        queues: dict[str, Any] = {}
        for topic in dict.fromkeys(topics):
            for queue_id in range(16):
                queue = Queue(topic, "broker-a", queue_id)
                try:
                    first, end = consumer.min_offset(queue), consumer.max_offset(queue)
                except ClientError:
                    break
                if end > 0:
                    messages = _messages(consumer, queue, first, end)
                    queues[f"{topic}/{queue_id}"] = {"min": first, "max": end, "messages": messages}
        shared = sorted(message.queue_offset for message in consumer.query(TOPIC, "shared", 1000))
    return {"version": java.version, "queues": queues, "with_key_shared": shared}


def _messages(consumer: Any, queue: Queue, first: int, end: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    place = first
    while place < end:
        pulled = consumer.pull(queue, place, 32)
        assert pulled.messages, (queue, place, pulled.status)
        messages += (_line(message) for message in pulled.messages)
        place = pulled.next_offset
    return messages


def _line(message: Any) -> dict[str, Any]:
    line = dataclasses.asdict(message)
    body = line.pop("body")
    line["body_bytes"], line["body_sha256"] = len(body), hashlib.sha256(body).hexdigest()
    del line["topic"], line["queue_id"]
    return line


# --- the stores -----------------------------------------------------------------------------------


def single(java: JavaClient, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A group of one member, stopped cleanly."""
    with JavaCluster(java.version, folder, {**SETTINGS, **dledger(free_port())}) as cluster:
        fill(java, cluster.namesrv, folder, "a")
        manifest = described(java, cluster.namesrv)
        cluster.stop()
    return cluster.store, manifest


def mixed(java: JavaClient, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A plain log, which DLedger continues."""
    with JavaCluster(java.version, folder, SETTINGS) as cluster:
        fill(java, cluster.namesrv, folder, "plain")
        cluster.stop()
    with JavaCluster(java.version, folder, {**SETTINGS, **dledger(free_port())}) as cluster:
        fill(java, cluster.namesrv, folder, "dledger")
        manifest = described(java, cluster.namesrv)
        cluster.stop()
    return cluster.store, manifest


@contextlib.contextmanager
def group_of_three(version: str, folder: Path) -> Iterator[list[JavaCluster]]:
    """Run three members of a group."""
    ports = (free_port(), free_port(), free_port())
    with contextlib.ExitStack() as stack:
        members: list[JavaCluster] = []
        for number in range(3):
            settings = {**SETTINGS, **dledger(ports[number], number, ports), "brokerId": number}
            namesrv = members[0].namesrv if members else None
            member = JavaCluster(version, folder / f"n{number}", settings, namesrv=namesrv)
            members.append(stack.enter_context(member))
        yield members


def uncommitted(java: JavaClient, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The leader of three, whose followers are killed first: its last entries have no quorum."""
    with group_of_three(java.version, folder) as members:
        namesrv = members[0].namesrv
        fill(java, namesrv, folder, "a", few=True)
        manifest = described(java, namesrv)
        with java.admin(namesrv) as admin:
            info = admin.call("examineBrokerClusterInfo")
        leader_address = info["brokerAddrTable"]["broker-a"]["brokerAddrs"]["0"]
        (leader,) = (member for member in members if member.address == leader_address)
        for member in members:
            if member is not leader:
                member.kill_broker()
        with java.producer(namesrv, retryTimesWhenSendFailed=0) as producer:
            queue = Queue(TOPIC, "broker-a", 1)
            for number in range(3):
                body = b"without a quorum %d" % number
                results = producer.results([JavaMessage(TOPIC, body)], queue=queue, timeout_ms=800)
                manifest.setdefault("without_quorum", []).append(repr(results))
        leader.kill_broker()
        store = leader.store
    return store, manifest


def rocksdb(java: JavaClient, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Queues and tables in RocksDB."""
    settings = {**SETTINGS, "storeType": "defaultRocksDB"}
    with JavaCluster(java.version, folder, settings) as cluster:
        fill(java, cluster.namesrv, folder, "a")
        manifest = described(java, cluster.namesrv)
        cluster.stop()
    return cluster.store, manifest


STORES: dict[str, tuple[str, Callable[[JavaClient, Path], tuple[Path, dict[str, Any]]]]] = {
    **{f"{version}/single": (version, single) for version in VERSIONS},
    **{f"{version}/mixed": (version, mixed) for version in VERSIONS},
    **{f"{version}/uncommitted": (version, uncommitted) for version in VERSIONS},
    **{f"{version}/rocksdb": (version, rocksdb) for version in ("5.3.3", "5.5.0")},
}


def pack(store: Path, manifest: dict[str, Any], target: Path) -> None:
    """Write the archive of a store and its manifest; zeros at ends of files are left out."""
    sizes = {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(store.rglob("*")):
            name = f"store/{path.relative_to(store)}"
            entry = archive.gettarinfo(path, name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if path.is_dir():
                archive.addfile(entry)
                continue
            data = path.read_bytes()
            used = data.rstrip(b"\0")
            if len(data) - len(used) > ROOM_BYTES:
                sizes[name] = len(data)
                data = used
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    target.parent.mkdir(parents=True, exist_ok=True)
    packed = zstandard.ZstdCompressor(level=19).compress(buffer.getvalue())
    target.with_name(f"{target.name}.tar.zst").write_bytes(packed)
    text = json.dumps({**manifest, "sizes": sizes}, sort_keys=True, ensure_ascii=False)
    target.with_name(f"{target.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Record the named stores, or all."""
    for name in sys.argv[1:] or STORES:
        version, make = STORES[name]
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            with JavaClient(version, root / "client") as java:
                store, manifest = make(java, root)
            pack(store, manifest, DATA / name)


if __name__ == "__main__":
    main()
