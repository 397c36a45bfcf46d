"""Check the folders that jobs write to: a name must mean the same on the driver and all workers."""

from reput.errors import InvalidOption
from reput.store.files.files import absolute


def writable_folder(option: str, location: str) -> str:
    """Return the absolute path of a folder that tasks write to at positions.

    Raises:
        InvalidOption: It is a URI. Object stores do not support writes at a position.
    """
    if "://" in location:
        raise InvalidOption(
            option,
            location,
            "a folder of a file system that driver and workers share; object stores do not "
            "support writes at a position (a store that is only read may be on one)",
        )
    return absolute(location)
