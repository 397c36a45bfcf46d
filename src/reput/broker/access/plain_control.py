"""Changes of access control 1.0 in a running broker: by its files, and by requests."""

from collections.abc import Callable
from typing import TypeVar

from reput.broker.access.plain_accounts import PlainAccounts
from reput.broker.access.plain_file import PlainFiles
from reput.broker.access.plain_rules import PlainRules
from reput.broker.threads import WorkerThread

_T = TypeVar("_T")


def load(
    home: str, plain_file: str, *, skips_signature: bool, monotonic_ms: int
) -> tuple[PlainFiles, PlainRules]:
    """Return the files of a broker that starts, and their rules.

    Raises:
        InvalidOption: A file cannot be read, or something in it is wrong.
    """
    files = PlainFiles(home, plain_file)
    return files, PlainRules(files.load(monotonic_ms), skips_signature=skips_signature)


def accounts_of(home: str, plain_file: str) -> PlainAccounts:
    """Return the accounts of files, which may have been deleted.

    Raises:
        InvalidOption: A file cannot be read, or something in it is wrong.
    """
    files = PlainFiles(home, plain_file)
    return files.load(0) if files.are_there else files.accounts


class PlainControl:
    """Reads and changes the files in the disk thread, and puts the result in force.

    Args:
        files: The files.
        rules: The rules in force.
        disk_thread: The thread for work that waits for the disk.
        on_change: Called when other rules are in force.
    """

    def __init__(
        self,
        files: PlainFiles,
        rules: PlainRules,
        disk_thread: WorkerThread,
        on_change: Callable[[], object],
    ) -> None:
        self.files = files
        self._rules = rules
        self._disk_thread = disk_thread
        self._on_change = on_change

    async def update(self, change: Callable[[PlainFiles], _T]) -> _T:
        """Change the files; after the return, no request is checked with the old accounts."""
        try:
            return await self._disk_thread.run(lambda: change(self.files))
        finally:
            self._put_in_force()

    async def reload(self, monotonic_ms: int) -> None:
        """Read the files if they have changed."""
        await self.update(lambda files: files.reload(monotonic_ms))

    def _put_in_force(self) -> None:
        accounts = self.files.accounts
        if accounts is not self._rules.accounts:
            self._rules.replace(accounts)
            self._on_change()
