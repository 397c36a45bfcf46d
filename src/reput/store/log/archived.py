"""Checks that a log file is in an archive, before the store deletes it.

``spark/archive/files.py`` has the full format of manifests. This check requires no Parquet: it
reads the manifest, which is written last, after the archive was compared with the log, and the
sizes of the files in the manifest.
"""

import msgspec

from reput.errors import NotInStore, StoreUnavailable
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder

FORMAT = 1
HEADER = "archive.json"
MANIFESTS = "manifests"


class _File(msgspec.Struct, frozen=True):
    path: str
    bytes: int


class _Manifest(msgspec.Struct, frozen=True):
    """The part of a manifest that the check uses."""

    format: int
    start: int
    size: int
    is_closed: bool
    rest: _File
    keys: _File
    parts: tuple[_File, ...]


def manifest_path(start: int) -> str:
    """Return the path in an archive of the manifest of a log file."""
    return f"{MANIFESTS}/{paths.offset_name(start)}.json"


def is_archived(archive: str | Folder, start: int, size: int) -> bool:
    """Return True if a closed log file is in an archive, so that the store may delete it.

    False in case of doubt: if the archive cannot be reached, or a file is missing or has another
    size. Messages that ``compact`` has removed from the archive since count as archived.

    Args:
        archive: A path, a URI, or an open folder.
        start: Physical offset of the log file.
        size: Size of the log file in bytes.
    """
    try:
        folder = open_folder(archive) if isinstance(archive, str) else archive
        manifest = msgspec.json.decode(folder.read(manifest_path(start)), type=_Manifest)
        is_same = (manifest.format, manifest.start, manifest.size) == (FORMAT, start, size)
        pieces = (manifest.rest, manifest.keys, *manifest.parts)
        return is_same and manifest.is_closed and all(_has_size(folder, file) for file in pieces)
    except (NotInStore, StoreUnavailable, msgspec.MsgspecError):
        return False


def _has_size(folder: Folder, piece: _File) -> bool:
    entry = folder.entry(piece.path)
    return entry is not None and not entry.is_folder and entry.size == piece.bytes
