"""Connections that open and say nothing, as a process: they need as many descriptors as a server.

    python -m hostile.silent PORT COUNT ADDRESS...

Connects from the addresses in turn, in steps, so that the queue of a listening socket is never
full. Prints the number of connections after each step, and waits for a line of input. Then reads
until the server has closed all of them, and prints JSON: last words of the server, without the
address of the peer -> number of connections that got them. They are the text of a GOAWAY frame.
"""

import contextlib
import json
import re
import resource
import selectors
import socket
import sys
from collections import Counter

from reput.grpc.http2.frames import FrameType

STEP = 500
"""Connections that are opened without waiting for the server."""
_HEAD_BYTES = 9
_TEXT_POSITION = 8  # after last stream and error code


def _last_words(data: bytes) -> str:
    """Return the text of the GOAWAY frame at the end of what a server has sent."""
    position = 0
    while position < len(data):
        begin = position + _HEAD_BYTES
        end = begin + int.from_bytes(data[position : position + 3], "big")
        if data[position + 3] == FrameType.GOAWAY:
            text = data[begin + _TEXT_POSITION : end].decode()
            return re.sub(r" \([0-9.:]+\)", "", text)
        position = end
    return ""


def main() -> None:
    port, count, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    received: dict[socket.socket, bytes] = {}
    for number in range(1, count + 1):
        source = addresses[number % len(addresses)]
        connection = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        received[connection] = b""
        if number % STEP == 0 or number == count:
            print(number, flush=True)  # noqa: T201
            sys.stdin.readline()
    words: Counter[str] = Counter()
    with selectors.DefaultSelector() as selector:
        for connection in received:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                connection = key.fileobj  # type: ignore[assignment]
                data = b""
                with contextlib.suppress(ConnectionResetError):
                    data = connection.recv(1 << 12)
                received[connection] += data
                if not data:
                    selector.unregister(connection)
                    words[_last_words(received[connection])] += 1
                    connection.close()
    print(json.dumps(words), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
