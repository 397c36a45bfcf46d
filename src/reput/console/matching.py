"""Regular expressions on bodies, in a separate process.

An expression may take longer than the age of the universe, and Python cannot interrupt it. So a
child process matches, and is ended when it is late: the console does not wait for it.

``python -m reput.console.matching`` reads frames: the length in four bytes, then msgpack. The first
is the expression, the others are lists of bodies; each gets a list of the indexes that match. The
expression gets an empty one.
"""

import asyncio
import re
import struct
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from reput.errors import InvalidOption, ReputError

BATCH_MS = 2_000
"""Maximum time for matching the bodies of one part of a queue."""
START_MS = 10_000
"""Time for the start of the process."""
_LENGTH = struct.Struct(">I")


class TooSlow(ReputError):
    """The expression takes too long on these bodies."""


class Expression:
    """A regular expression, with its process while it is entered.

    Args:
        pattern: The expression; empty: none, and no process.

    Raises:
        InvalidOption: It cannot be compiled.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._process: asyncio.subprocess.Process | None = None
        try:
            re.compile(pattern.encode())
        except (re.error, RecursionError, OverflowError, UnicodeEncodeError) as error:
            allowed = f"a regular expression of Python: {error}"
            raise InvalidOption("expression", pattern, allowed) from error

    def __bool__(self) -> bool:
        """Return whether there is an expression."""
        return bool(self._pattern)

    async def __aenter__(self) -> Self:
        """Return the expression; its process starts with the first bodies."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        await self._end()

    async def matches(self, bodies: Sequence[bytes]) -> list[int]:
        """Return the indexes of the bodies that contain the expression.

        Raises:
            TooSlow: It takes more than ``BATCH_MS``; the process is ended, and a later call starts
                another.
        """
        if not bodies:
            return []
        try:
            if self._process is None:
                async with asyncio.timeout(START_MS / 1000):
                    await self._start()
            async with asyncio.timeout(BATCH_MS / 1000):
                return await self._ask(bodies)
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            await self._end()
            raise TooSlow(f"the expression takes more than {BATCH_MS / 1000:g} s") from error
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "reput.console.matching"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._ask(self._pattern)

    async def _ask(self, value: object) -> list[int]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_frame(value))
        await process.stdin.drain()
        (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
        return msgspec.msgpack.decode(await process.stdout.readexactly(length), type=list[int])

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


def _frame(value: object) -> bytes:
    data = msgspec.msgpack.encode(value)
    return _LENGTH.pack(len(data)) + data


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end."""
    expression: re.Pattern[bytes] | None = None
    while head := requests.read(_LENGTH.size):
        value = msgspec.msgpack.decode(requests.read(_LENGTH.unpack(head)[0]))
        if expression is None:
            expression = re.compile(value.encode())
            indexes = []
        else:
            indexes = [index for index, body in enumerate(value) if expression.search(body)]
        replies.write(_frame(indexes))
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
