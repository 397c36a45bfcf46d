"""Every exception that reput raises on purpose, by what the caller may do about it.

    ReputError
    ├── CorruptRecord        bytes of a store are damaged; says where and how
    ├── StoreUnavailable     a folder cannot be read as a store (not one, running, RocksDB mode)
    ├── NotInStore           the store is fine, what was asked for is not in it
    ├── WriteFailed          the system did not write or sync, so nothing new is durable
    │   └── DiskFull         there is no room: free some, or add a folder, and try again
    └── InvalidOption        a setting or argument is wrong; says which and what is allowed

Bugs are assertions and never one of these.
"""


class ReputError(Exception):
    """Base of all errors that reput raises on purpose."""


class CorruptRecord(ReputError):
    """Bytes that should be a record, a unit or an entry are not.

    Args:
        reason: What is wrong, as a sentence without the place.
        physical_offset: Commit log offset of the damage, where it has one.
        file: File that holds it, where known.
        length: Bytes up to the next readable record, where known.
    """

    def __init__(
        self,
        reason: str,
        *,
        physical_offset: int | None = None,
        file: str | None = None,
        length: int | None = None,
    ) -> None:
        self.reason = reason
        self.physical_offset = physical_offset
        self.file = file
        self.length = length
        place = []
        if file is not None:
            place.append(file)
        if physical_offset is not None:
            place.append(f"physical offset {physical_offset}")
        if length is not None:
            place.append(f"{length} bytes")
        super().__init__(f"{', '.join(place)}: {reason}" if place else reason)


class StoreUnavailable(ReputError):
    """The folder cannot be read as a RocketMQ store; the text says why and what to do."""


class NotInStore(ReputError):
    """Nothing in the store answers to this offset, id or queue."""


class WriteFailed(ReputError):
    """The operating system did not write, sync or make a file.

    Args:
        path: The file or folder.
        reason: What was tried, and what the system said.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class DiskFull(WriteFailed):
    """The file system, a quota or a limit of the process has no room for a file's bytes.

    Args:
        path: The file.
        asked_bytes: How much room was asked for.
        reason: What the system said.
    """

    def __init__(self, path: str, asked_bytes: int, reason: str) -> None:
        self.asked_bytes = asked_bytes
        super().__init__(path, f"no room for {asked_bytes} bytes: {reason}")


class InvalidOption(ReputError):
    """An option or argument has a value that is not allowed.

    Args:
        name: The option as the user wrote it.
        value: What was given.
        allowed: What would have been accepted, as a phrase.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"option {name!r} is {value!r}; allowed: {allowed}")
