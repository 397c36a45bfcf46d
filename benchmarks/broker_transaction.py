"""Transactions: rate and broker CPU of half and commit, beside plain sends; many that wait."""

import json
import socket
import time
from pathlib import Path

from benchmarks import broker_frames as frames, broker_targets as targets
from benchmarks.broker_process import Usage
from benchmarks.broker_targets import Target

NAME = "broker_transaction"
QUESTION = "transactions/s, broker CPU for each message they write, memory of 100,000 that wait"

GROUP = "bench-producer"
WINDOWS = (1, 64)
MESSAGES_OF_ONE = 3
"""That a committed transaction writes: half, final, op."""
PENDING = 100_000
_READ_BYTES = 1 << 18


class Line:
    """A connection; requests go out together, and their replies are waited for."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._left = b""
        self._number = 0

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, requests: list[bytes]) -> list[dict[str, str]]:
        """Return the fields of the replies, in the order of the requests."""
        self._socket.sendall(b"".join(requests))
        found: dict[int, dict[str, str]] = {}
        data = self._left
        while len(found) < len(requests):
            data += self._socket.recv(_READ_BYTES)
            while len(data) >= 8 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
                header = json.loads(data[8 : 8 + int.from_bytes(data[5:8], "big")])
                if header["code"]:
                    raise RuntimeError(f"code {header['code']}: {header.get('remark')}")
                found[header["opaque"]] = header.get("extFields") or {}
                data = data[4 + size :]
        self._left = data
        return [found[opaque] for opaque in sorted(found)]

    def numbers(self, count: int) -> range:
        """Return opaques that were not used."""
        self._number += count
        return range(self._number - count, self._number)

    def send(self, count: int, *, is_half: bool, properties: str = "") -> list[dict[str, str]]:
        """Send so many messages of 128 bytes, with these properties, too."""
        requests = []
        for opaque in self.numbers(count):
            born_ms = time.time_ns() // 1_000_000
            fields = frames.request_fields("bench", opaque % 4, f"{opaque:032X}", born_ms)
            fields["i"] += properties
            if is_half:
                fields["f"] = "4"
                fields["i"] += f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
            requests.append(frames.request(310, fields, bytes(128), opaque))
        return self.ask(requests)

    def commit(self, halves: list[dict[str, str]]) -> None:
        """Commit half messages, by the replies that they got."""
        opaques = self.numbers(len(halves))
        self.ask(
            [
                frames.request(37, _decision(half), opaque=opaque)
                for opaque, half in zip(opaques, halves, strict=True)
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
    """Send for a while; ``broker_cpu_us`` is for each message that the broker wrote."""
    line = Line(target.address)
    count = 0
    before, start = Usage.of(target.pid), time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        replies = line.send(window, is_half=in_transaction)
        if in_transaction:
            line.commit(replies)
        count += window
    cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    line.close()
    written = count * (MESSAGES_OF_ONE if in_transaction else 1)
    return {"per_s": count / took, "broker_cpu_us": cpu_s / written * 1e6}


def _pending(target: Target, count: int) -> dict[str, float]:
    """Leave half messages undecided; return what they add to the broker's memory.

    The resident bytes are those on disk as well, as the files are mapped.
    """
    line = Line(target.address)
    before = Usage.of(target.pid)
    for _ in range(0, count, 100):
        line.send(100, is_half=True)
    after = Usage.of(target.pid)
    line.close()
    return {
        "pending": count,
        "anonymous_megabytes": (after.anonymous_bytes - before.anonymous_bytes) / 1e6,
        "rss_megabytes": (after.rss_bytes - before.rss_bytes) / 1e6,
    }


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both windows, and what waits; quick: shorter and a tenth."""
    repeats, seconds = (1, 1.5) if quick else (3, 3.0)
    pending = PENDING // 10 if quick else PENDING
    results: dict[str, object] = {}
    with targets.brokers(folder / NAME) as found:
        targets.warm_up(found, 2.0 if quick else 7.0)
        for window in WINDOWS:
            for name, in_transaction in (("plain", False), ("transaction", True)):
                results[f"{name}_window_{window}"] = targets.measure(
                    found,
                    repeats,
                    lambda one, w=window, t=in_transaction: _rate(  # type: ignore[misc]
                        one, w, seconds, in_transaction=t
                    ),
                )
        results["waiting"] = targets.measure(found, 1, lambda one: _pending(one, pending))
    return results
