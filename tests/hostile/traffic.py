"""A well-behaved producer and consumer, beside any attack on a broker.

    python -m hostile.traffic PORT    in ``tests/``; ends with its stdin, prints JSON

Messages go to the queues of a topic in rotation; each body has its number. Acknowledged messages
are recorded with their places, and the consumer reads each queue from its beginning: ``wrong``
lists differences from the acknowledged messages.
"""

import itertools
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from reput.format import command as commands, headers, message as records
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader, SendMessageHeader

TOPIC = "SteadyTraffic"
GROUP = "steady_consumers"
QUEUES = 4
PAUSE_S = 0.02
REPLY_S = 30.0
END_S = 60.0
"""Time that the consumer may take to read to its end, in s."""


class Traffic:
    """Sends and pulls over a connection each."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: socket.socket | None = None
        self._opaque = itertools.count(1)
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(QUEUES)]
        self.positions = [0] * QUEUES
        self.acknowledged_count = 0
        self.consumed = 0
        self.errors = 0
        self.refusals: dict[str, int] = {}
        self.wrong: list[str] = []

    def run(self, is_over: Callable[[float], object]) -> None:
        """Send and pull, then read the rest.

        Args:
            is_over: Waits for some seconds at most; returns whether to send no more.
        """
        for number in itertools.count():
            self._send(number)
            self._pull(number % QUEUES)
            if is_over(PAUSE_S):
                break
        deadline = time.monotonic() + END_S
        while self._waits_for() and time.monotonic() < deadline:
            for queue_id in range(QUEUES):
                self._pull(queue_id)
        if self._waits_for():
            self.wrong.append(f"acknowledged and not there: {self._waits_for()} messages")
        if self._connection is not None:
            self._connection.close()

    def summary(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {
            "acknowledged": self.acknowledged_count,
            "consumed": self.consumed,
            "errors": self.errors,
            "refusals": self.refusals,
            "wrong": self.wrong[:20],
        }

    def _waits_for(self) -> int:
        return sum(map(len, self.acknowledged))

    def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command | None:
        """Return the reply; None if there is none."""
        request = Command(code, next(self._opaque), ext_fields=fields, body=body)
        try:
            if self._connection is None:
                self._connection = socket.create_connection(("127.0.0.1", self._port), REPLY_S)
            self._connection.sendall(commands.encode(request))
            (length,) = struct.unpack(">i", self._read(4))
            reply = commands.decode(self._read(length))
        except OSError:
            self.errors += 1
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            return None
        assert reply.opaque == request.opaque
        return reply

    def _read(self, count: int) -> bytes:
        assert self._connection is not None
        data = bytearray()
        while len(data) < count:
            more = self._connection.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return bytes(data)

    def _send(self, number: int) -> None:
        body = b"message %d of the steady producer" % number
        header = SendMessageHeader(
            producer_group="steady_producers",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=number % QUEUES,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties=f"KEYS\x01steady-{number}\x02",
        )
        fields = headers.encode_v2(header)
        reply = self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        if reply is None:
            return
        if reply.code != ResponseCode.SUCCESS:
            text = f"{reply.code}: {reply.remark}"
            self.refusals[text] = self.refusals.get(text, 0) + 1
            return
        assert reply.ext_fields is not None
        place = int(reply.ext_fields["queueOffset"])
        queue = self.acknowledged[int(reply.ext_fields["queueId"])]
        if place in queue or place < self.positions[number % QUEUES]:
            self.wrong.append(f"place {place} of queue {number % QUEUES} was given twice")
        queue[place] = body
        self.acknowledged_count += 1

    def _pull(self, queue_id: int) -> None:
        header = PullMessageHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=self.positions[queue_id],
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )
        reply = self._ask(RequestCode.PULL_MESSAGE, headers.encode(header))
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        position = 0
        while position < len(reply.body):
            message = records.decode(reply.body, position)
            self._take(queue_id, message.queue_offset, message.body)
            (size,) = struct.unpack_from(">i", reply.body, position)
            position += size

    def _take(self, queue_id: int, place: int, body: bytes) -> None:
        if place != self.positions[queue_id]:
            self.wrong.append(
                f"queue {queue_id} went from {self.positions[queue_id]} to {place} at once"
            )
        self.positions[queue_id] = place + 1
        self.consumed += 1
        wanted = self.acknowledged[queue_id].pop(place, None)
        if wanted is not None and wanted != body:
            self.wrong.append(f"{place} of queue {queue_id} is {body!r}, was {wanted!r}")


def check(summary: dict[str, Any]) -> None:
    """Fail if acknowledged messages were not consumed, or others were."""
    assert not summary["wrong"], summary
    assert summary["acknowledged"] > 0, summary
    assert summary["consumed"] >= summary["acknowledged"], summary


def main() -> None:
    traffic = Traffic(int(sys.argv[1]))
    traffic.run(lambda wait_s: select.select([sys.stdin], [], [], wait_s)[0])
    print(json.dumps(traffic.summary()))  # noqa: T201


if __name__ == "__main__":
    main()
