"""Where controllers keep what they must not forget: a small store that they share, or a file.

A value has a key and a revision, which grows with each change. ``compare_and_set`` replaces the
value of a key if its revision is still the one that the caller has read. Only the leader changes
values: its *fencing number* is larger than those of all earlier leaders, and the store refuses a
change under another number than that of the leader. So the changes of a leader that was deposed
without noticing fail.

``file_quorum`` is a file for a single controller, which always leads; with ``etcd_quorum`` several
controllers share an etcd.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reput.errors import ReputError
from reput.format.codes import ResponseCode


class StoredValue(NamedTuple):
    """A value of the store."""

    value: bytes
    revision: int


class Peer(NamedTuple):
    """A controller."""

    name: str
    address: str
    """Address for brokers, ``host:port``."""


class Conflict(ReputError):
    """A value has another revision than the caller has read: read it again."""


class Deposed(ReputError):
    """The caller leads no more."""

    response_code = ResponseCode.CONTROLLER_NOT_LEADER


class QuorumStore(Protocol):
    """A store of values; each method may wait for a disk or for other machines."""

    @property
    def failure(self) -> str:
        """Why the store cannot be used now; empty if it can."""

    @property
    def place(self) -> str:
        """Where it is, for logs."""

    @property
    def leader(self) -> Peer | None:
        """The leading controller, if another one is known to lead."""

    @property
    def members(self) -> Sequence[Peer]:
        """The other controllers that run, as far as they are known."""

    @property
    def term(self) -> int:
        """A number that is another one if another controller has led since it was read."""

    async def lead(self) -> int:
        """Become the leader, and return the fencing number; wait while another one leads.

        Raises:
            ReputError: The store cannot be used.
        """

    def leads(self, fence: int) -> bool:
        """Return whether the fencing number is certainly still that of the leader."""

    async def until_deposed(self, fence: int) -> None:
        """Wait until another controller may lead permanently."""

    async def read(self) -> dict[str, StoredValue]:
        """Return all values by key, with every change that has succeeded.

        Raises:
            ReputError: The store does not answer.
        """

    async def compare_and_set(
        self, key: str, value: bytes | None, *, revision: int, fence: int
    ) -> int:
        """Replace a value; return its new revision. On return it is durable.

        Args:
            key: The key.
            value: The new value; None deletes the key.
            revision: Revision of the value that the caller has read; 0 if there was none.
            fence: Fencing number of the caller.

        Raises:
            Conflict: The revision is another one.
            Deposed: The fencing number is not that of the leader.
            ReputError: The outcome is unknown: read before the next change of the key.
        """

    async def close(self) -> None:
        """Stop leading, and release everything."""

    def abandon(self) -> None:
        """Release at once what belongs to the machine, without waiting."""
