"""Whether a log file is in an archive, as the store needs to know before it lets the file go.

The whole of a manifest is ``spark/archive/files.py``'s. What decides here is as little as can be
asked without reading Parquet: the manifest, which an archive writes last, after it has compared
what it wrote with the log, and the sizes of the files that the manifest names.
"""

import msgspec

from reput.errors import NotInStore, StoreUnavailable
from reput.store import paths
from reput.store.files import Folder, open_folder

FORMAT = 1
HEADER = "archive.json"
MANIFESTS = "manifests"


class _File(msgspec.Struct, frozen=True):
    path: str
    bytes: int


class _Manifest(msgspec.Struct, frozen=True):
    """What of a manifest matters here."""

    format: int
    start: int
    size: int
    is_closed: bool
    rest: _File
    keys: _File
    parts: tuple[_File, ...]


def manifest_path(start: int) -> str:
    """Return where in an archive the manifest of the log file that starts at an offset is."""
    return f"{MANIFESTS}/{paths.offset_name(start)}.json"


def is_archived(archive: str | Folder, start: int, size: int) -> bool:
    """Whether a closed log file is in an archive, so that the store may let go of it.

    No where anything is in doubt: where the archive cannot be reached, a file is gone or has
    another size. What ``compact`` has taken out of the archive since was there.

    Args:
        archive: A path, a URI, or a folder that is open.
        start: Physical offset of the log file's first byte.
        size: Its bytes.
    """
    try:
        folder = open_folder(archive) if isinstance(archive, str) else archive
        manifest = msgspec.json.decode(folder.read(manifest_path(start)), type=_Manifest)
        is_same = (manifest.format, manifest.start, manifest.size) == (FORMAT, start, size)
        pieces = (manifest.rest, manifest.keys, *manifest.parts)
        return is_same and manifest.is_closed and all(_has_size(folder, one) for one in pieces)
    except (NotInStore, StoreUnavailable, msgspec.MsgspecError):
        return False


def _has_size(folder: Folder, piece: _File) -> bool:
    entry = folder.entry(piece.path)
    return entry is not None and not entry.is_folder and entry.size == piece.bytes
