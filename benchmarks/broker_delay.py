"""Delayed messages that become due during sends: rate, lateness and cost of their delivery.

A store is filled before the broker starts: N messages become due each second, from a given time on.
Then messages are sent at a steady rate. The delivered messages are read from the store at the end.

In addition: what a million pending messages add to memory and start time, and the cost of a delayed
send compared with a plain one.
"""

import json
import time
from pathlib import Path

import numpy as np

from benchmarks import broker_targets as targets
from benchmarks.broker_connection import ask
from benchmarks.broker_process import Usage
from benchmarks.broker_transaction import Sender
from reput.broker.timer.timers import Timers
from reput.clock import SystemClock
from reput.format import message as record, names, properties as props
from reput.format.codes import RequestCode
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.timer_table import TimerTable
from reput.store.writing.incoming import IncomingMessage

NAME = "broker_delay"
QUESTION = (
    "20 k due messages/s beside 5 k sends/s: lateness, CPU, p99 of sends; 1 M that wait: memory; "
    "broker CPU of a send that waits"
)

DUE_PER_S = 20_000
SENDS_PER_S = 5_000
WAITING = 1_000_000
QUEUES = 4
BODY = b"x" * 128
_TOPIC = "due"
_LEVEL, _LEVEL_MS = 4, 30_000
_AHEAD_MS = 1_000
"""Time between the start of the sends and the first due message: the generator's warm-up."""
_RUN = 20
"""Messages put at once: those of a millisecond."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure sends alone, with delay levels and with timers, for 10 s each; quick: for 4 s.

    Then measure pending messages; quick: a tenth of them.
    """
    seconds = 4 if quick else 10
    count = WAITING // 10 if quick else WAITING
    results: dict[str, object] = {
        kind: _measure(folder / NAME / kind, kind, seconds)
        for kind in ("alone", "levels", "timers")
    }
    pending = folder / NAME / "waiting"
    results["waiting"] = {
        "none": _pending(pending / "none", "levels", 0),
        "levels": _pending(pending / "levels", "levels", count),
        "timers": _pending(pending / "timers", "timers", count),
    }
    results["sends"] = _sends(folder / NAME / "sends", 1.5 if quick else 5.0)
    return results


def _sends(folder: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Send messages of each kind that are due in two hours; ``broker_cpu_us`` is for each."""
    folder.mkdir(parents=True)
    kinds = {"plain": "", "levels": "DELAY\x0118\x02", "timers": "TIMER_DELAY_SEC\x017200\x02"}
    results = {}
    with targets.ours(folder, {"storePathRootDir": str(folder / "store")}) as broker:
        sender = Sender(broker.address)
        for properties in kinds.values():  # creates all topics
            sender.send_messages(64, is_half=False, properties=properties)
        for window in (1, 64):
            for kind, properties in kinds.items():
                before, start, count = Usage.of(broker.pid), time.perf_counter(), 0
                while (took := time.perf_counter() - start) < seconds:
                    sender.send_messages(window, is_half=False, properties=properties)
                    count += window
                cpu_s = Usage.of(broker.pid).cpu_s - before.cpu_s
                rates = {"per_s": count / took, "broker_cpu_us": cpu_s / count * 1e6}
                results[f"{kind}_window_{window}"] = rates
        sender.close()
    return results


def _pending(folder: Path, kind: str, count: int) -> dict[str, object]:
    """Start a broker whose messages are due in an hour."""
    root = folder / "store"
    root.mkdir(parents=True)
    _fill(root, kind, count, SystemClock().now_ms() + 3_600_000)
    # Units contain the due time, but no message is delayed longer than its level.
    settings = {"storePathRootDir": str(root), "messageDelayLevel": "1s 5s 10s 2h"}
    begun = time.perf_counter()
    with targets.ours(folder / "process", settings) as broker:
        while _timer_backlog(broker):
            targets.pause(0.02)
        taken_up_s = time.perf_counter() - begun
        usage = Usage.of(broker.pid)
    return {
        "count": count,
        "start_s": round(broker.start_s, 2),
        "taken_up_s": round(taken_up_s, 2),
        "rss_megabytes": round(usage.rss_bytes / 1e6, 1),
        "anonymous_megabytes": round(usage.anonymous_bytes / 1e6, 1),
        "log_megabytes": round(sum(file.stat().st_blocks for file in _files(root)) * 512 / 1e6, 1),
    }


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _timer_backlog(broker: targets.Target) -> int:
    """Return the number of messages of the timer's queue that the broker has not read."""
    reply = ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(json.loads(reply.body)["table"]["timerOffsetBehind"])


def _measure(folder: Path, kind: str, seconds: int) -> dict[str, object]:
    count = 0 if kind == "alone" else DUE_PER_S * seconds
    root = folder / "store"
    root.mkdir(parents=True)
    fill_ms = 5_000 + count // 20  # longer than filling takes
    first_ms = SystemClock().now_ms() + fill_ms
    _fill(root, kind, count, first_ms)
    with targets.ours(folder / "process", {"storePathRootDir": str(root)}) as broker:
        left_s = (first_ms - _AHEAD_MS - SystemClock().now_ms()) / 1000
        assert left_s > 0, "filling took too long"
        targets.pause(left_s)
        before = Usage.of(broker.pid)
        result = targets.load(broker, "open", per_s=SENDS_PER_S, seconds=seconds + 1.0)
        after = Usage.of(broker.pid)
        targets.pause(3.0)
    late_ms = _lateness(root)
    spent_s = after.cpu_s - before.cpu_s
    result |= {"broker_cpu_s": round(spent_s, 3), "rss_megabytes": round(after.rss_bytes / 1e6, 1)}
    if count:
        assert len(late_ms) == count, f"{len(late_ms)} of {count} were delivered"
        assert late_ms.min() >= 0, "a message was delivered early"
        result |= {
            "delivered": count,
            "late_ms_p50": float(np.percentile(late_ms, 50)),
            "late_ms_p99": float(np.percentile(late_ms, 99)),
            "late_ms_max": float(late_ms.max()),
        }
    return result


def _fill(root: Path, kind: str, count: int, first_ms: int) -> None:
    """Put messages that become due from ``first_ms`` on."""
    with MessageStore.open(config=StoreConfig(store_path_root_dir=str(root))) as store:
        timers = Timers(store, TimerTable.load(str(root), Disk()))
        for start in range(0, count, _RUN):
            due_ms = first_ms + start * 1000 // DUE_PER_S
            now_ms = due_ms - _LEVEL_MS
            messages = []
            for number in range(start, start + _RUN):
                properties = {"UNIQ_KEY": f"{number:032X}", "due": str(due_ms)}
                message = IncomingMessage(_TOPIC, BODY, number % QUEUES)
                if kind == "levels":
                    properties[props.DELAY] = str(_LEVEL)
                else:
                    properties[props.TIMER_DELIVER_MS] = str(due_ms)
                    timers.park(_TOPIC, number % QUEUES, properties, now_ms)
                    message.topic, message.queue_id = names.TIMER_TOPIC, 0
                message.property_bytes = props.encode(properties)
                messages.append(message)
            results = store.put_many(messages, now_ms)
            assert all(result.status.is_stored for result in results)


def _lateness(root: Path) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the time from when each message was due until it was stored, in ms."""
    late = []
    with MessageStore.open(config=StoreConfig(store_path_root_dir=str(root))) as store:
        for queue_id in range(QUEUES):
            queue_offset, end = 0, store.max_offset(_TOPIC, queue_id)
            while queue_offset < end:
                batch = store.get(_TOPIC, queue_id, queue_offset)
                for data in batch.records:
                    message = record.decode(data, check_crc=False)
                    late.append(message.store_timestamp - int(message.properties["due"]))
                queue_offset = batch.next_offset
    return np.array(late, np.int64)
