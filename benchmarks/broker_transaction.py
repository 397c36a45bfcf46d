"""Transactions: rate and broker CPU of half and commit, beside plain sends; pending ones."""

import time
from pathlib import Path

from benchmarks import broker_targets as targets
from benchmarks.broker_connection import BrokerConnection
from benchmarks.broker_process import Usage
from benchmarks.broker_targets import Target
from reput.cli import load_frames as frames
from reput.format.codes import RequestCode

NAME = "broker_transaction"
QUESTION = "transactions/s, broker CPU for each message written, memory of 100,000 pending ones"

GROUP = "bench-producer"
WINDOWS = (1, 64)
MESSAGES_OF_ONE = 3
"""Messages that a committed transaction writes: half, final, op."""
PENDING = 100_000


class Sender(BrokerConnection):
    """A connection that sends plain and half messages, and commits half messages."""

    def ask_fields(self, requests: list[bytes]) -> list[dict[str, str]]:
        """Return the fields of the replies, in the order of the requests."""
        return [reply.ext_fields or {} for reply in self.ask(requests)]

    def send_messages(
        self, count: int, *, is_half: bool, properties: str = ""
    ) -> list[dict[str, str]]:
        """Send N messages of 128 bytes with additional properties; return the replies' fields."""
        requests = []
        for opaque in self.opaques(count):
            text = frames.properties_of(f"{opaque:032X}") + properties
            if is_half:
                text += f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
            fields = frames.send_fields("bench", opaque % 4, text)
            if is_half:
                fields["f"] = "4"
            code = RequestCode.SEND_MESSAGE_V2
            requests.append(frames.request(code, fields, bytes(128), opaque=opaque))
        return self.ask_fields(requests)

    def commit(self, halves: list[dict[str, str]]) -> None:
        """Commit half messages, given the fields of the replies to them."""
        self.ask(
            [
                frames.request(RequestCode.END_TRANSACTION, _decision(half), opaque=opaque)
                for opaque, half in zip(self.opaques(len(halves)), halves, strict=True)
            ]
        )


def _decision(half: dict[str, str]) -> dict[str, str]:
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": half["msgId"],
    }


def _rate(target: Target, window: int, seconds: float, *, in_transaction: bool) -> dict[str, float]:
    """Send for some seconds; ``broker_cpu_us`` is for each message that the broker wrote."""
    sender = Sender(target.address)
    count = 0
    before, start = Usage.of(target.pid), time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        replies = sender.send_messages(window, is_half=in_transaction)
        if in_transaction:
            sender.commit(replies)
        count += window
    cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    sender.close()
    written = count * (MESSAGES_OF_ONE if in_transaction else 1)
    return {"per_s": count / took, "broker_cpu_us": cpu_s / written * 1e6}


def _pending(target: Target, count: int) -> dict[str, float]:
    """Leave half messages undecided; return the memory that they add to the broker.

    The resident memory includes the mapped files.
    """
    sender = Sender(target.address)
    before = Usage.of(target.pid)
    for _ in range(0, count, 100):
        sender.send_messages(100, is_half=True)
    after = Usage.of(target.pid)
    sender.close()
    return {
        "pending": count,
        "anonymous_megabytes": (after.anonymous_bytes - before.anonymous_bytes) / 1e6,
        "rss_megabytes": (after.rss_bytes - before.rss_bytes) / 1e6,
    }


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both windows, then pending transactions; quick: shorter, and a tenth of them."""
    repeats, seconds = (1, 1.5) if quick else (3, 3.0)
    pending = PENDING // 10 if quick else PENDING
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME) as brokers:
        targets.warm_up(brokers, 2.0 if quick else 7.0)
        for window in WINDOWS:
            for name, in_transaction in (("plain", False), ("transaction", True)):
                results[f"{name}_window_{window}"] = targets.measure(
                    brokers,
                    repeats,
                    lambda broker, w=window, t=in_transaction: _rate(  # type: ignore[misc]
                        broker, w, seconds, in_transaction=t
                    ),
                )
        results["waiting"] = targets.measure(brokers, 1, lambda broker: _pending(broker, pending))
    return results
