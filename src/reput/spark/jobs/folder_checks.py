"""Where jobs read and write: by names that mean the same on the driver and on all workers."""

from reput.errors import InvalidOption
from reput.store.files import absolute


def to_write(option: str, location: str) -> str:
    """Return the absolute path of a folder that tasks write to at positions.

    Raises:
        InvalidOption: It is a URI. Object stores cannot be written to at a position.
    """
    if "://" in location:
        raise InvalidOption(
            option,
            location,
            "a folder of a file system that driver and workers share; object stores cannot be "
            "written to at a position (what is read may be on one)",
        )
    return absolute(location)
