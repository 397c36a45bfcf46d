"""The trace of a run: a hash over everything that happens, in order, and on request its lines."""

import hashlib
from typing import TextIO


class Trace:
    """A hash over frames and operations of disks.

    Args:
        lines: Gets a line for each entry; None: only the hash is kept.
    """

    def __init__(self, lines: TextIO | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        self._lines = lines
        self.count = 0
        """Number of entries."""

    def add(self, now_s: float, kind: str, data: bytes | memoryview = b"") -> None:
        """Add an entry.

        Args:
            now_s: The virtual time.
            kind: What happens, and where.
            data: The bytes that are sent or written.
        """
        self.count += 1
        head = f"{now_s:.6f} {kind} {len(data)}\n"
        self._hash.update(head.encode())
        self._hash.update(data)
        if self._lines is not None:
            digest = hashlib.blake2b(data, digest_size=6).hexdigest()
            self._lines.write(f"{head[:-1]} {digest}\n")

    def digest(self) -> str:
        """Return the hash of all entries."""
        return self._hash.hexdigest()
