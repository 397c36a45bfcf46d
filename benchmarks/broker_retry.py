"""Messages that consumers send back: rate and broker CPU, beside plain sends.

A message that is sent back is written twice: as a delayed message, and after the delay into its
group's retry topic. Both are measured: the requests alone, with a delay of two hours, and the whole
delivery, with a delay of a second.
"""

import time
from pathlib import Path

from benchmarks import broker_targets as targets
from benchmarks.broker_process import Usage
from benchmarks.broker_targets import Target
from benchmarks.broker_transaction import Sender
from reput.cli import load_frames as frames
from reput.format.codes import RequestCode

NAME = "broker_retry"
QUESTION = "messages sent back/s, broker CPU for each message that the broker writes"

GROUP = "bench-retry"
WINDOWS = (1, 64)
_FAR_LEVEL, _NEAR_LEVEL = 18, 1
_DUE_S = 60.0
"""Timeout until the last message is in the retry topic."""


def _requests(sender: Sender, physical_offsets: list[int], level: int) -> list[bytes]:
    requests = []
    for opaque, physical_offset in zip(
        sender.opaques(len(physical_offsets)), physical_offsets, strict=True
    ):
        fields = {
            "offset": str(physical_offset),
            "group": GROUP,
            "delayLevel": str(level),
            "originMsgId": f"{opaque:032X}",
            "originTopic": "bench",
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }
        requests.append(frames.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields, opaque=opaque))
    return requests


def _plain(target: Target, window: int, seconds: float) -> dict[str, float]:
    sender = Sender(target.address)
    before, start, count = Usage.of(target.pid), time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds:
        sender.send_messages(window, is_half=False)
        count += window
    cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    sender.close()
    return {"per_s": count / took, "broker_cpu_us": cpu_s / count * 1e6}


def _sent_back(target: Target, window: int, seconds: float) -> dict[str, float]:
    """Send messages back with a long delay: the broker writes one message for each."""
    sender = Sender(target.address)
    physical_offsets = [
        int(reply["msgId"][16:], 16) for reply in sender.send_messages(window, is_half=False)
    ]
    before, start, count = Usage.of(target.pid), time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds:
        sender.ask(_requests(sender, physical_offsets, _FAR_LEVEL))
        count += window
    cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    sender.close()
    return {"per_s": count / took, "broker_cpu_us": cpu_s / count * 1e6}


def _delivered(target: Target, count: int) -> dict[str, float]:
    """Send messages back with a short delay: the broker writes two messages for each."""
    sender = Sender(target.address)
    physical_offsets = [
        int(reply["msgId"][16:], 16) for reply in sender.send_messages(64, is_half=False)
    ]
    sender.ask(_requests(sender, physical_offsets, _NEAR_LEVEL))  # creates the topics
    topic = f"%RETRY%{GROUP}"
    _await_end(target, topic, _end(target, topic) + 64)
    wanted = _end(target, topic) + count
    before = Usage.of(target.pid)
    for _ in range(0, count, 64):
        sender.ask(_requests(sender, physical_offsets, _NEAR_LEVEL))
    _await_end(target, topic, wanted)
    cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    sender.close()
    return {"count": count, "broker_cpu_us": cpu_s / (2 * count) * 1e6}


def _end(target: Target, topic: str) -> int:
    return targets.topic_end(target.address, topic, 1)


def _await_end(target: Target, topic: str, wanted: int) -> None:
    deadline = time.monotonic() + _DUE_S
    while _end(target, topic) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} has {_end(target, topic)} messages; wanted: {wanted}")
        targets.pause(0.1)


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both windows, then whole deliveries; quick: shorter and fewer."""
    repeats, seconds = (1, 1.5) if quick else (3, 3.0)
    count = 64 * (150 if quick else 600)
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME) as brokers:
        targets.warm_up(brokers, 2.0 if quick else 7.0)
        for window in WINDOWS:
            for name, work in (("plain", _plain), ("sent_back", _sent_back)):
                results[f"{name}_window_{window}"] = targets.measure(
                    brokers,
                    repeats,
                    lambda broker, w=window, do=work: do(broker, w, seconds),  # type: ignore[misc]
                )
        results["delivered"] = targets.measure(
            brokers, repeats, lambda broker: _delivered(broker, count)
        )
    return results
