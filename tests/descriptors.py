"""The descriptors of this process that a test looks at, without those of others.

The broker that tests share opens and closes files at any time, in another thread.
"""

import contextlib
from pathlib import Path

OF_THIS_PROCESS = Path("/proc/self/fd")


def open_below(folder: str | Path) -> list[str]:
    """Return the files of the descriptors at a folder or below it; deleted ones as well."""
    opened = []
    for descriptor in OF_THIS_PROCESS.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened.append(str(descriptor.readlink()))
    return [target for target in opened if f"{target}/".startswith(f"{folder}/")]
