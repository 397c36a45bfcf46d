"""Opens the store or archive at a path."""

import glob
from pathlib import Path

from reput.errors import InvalidOption
from reput.spark.archive import files as archive_files
from reput.spark.options import ReadOptions
from reput.store.files import paths
from reput.store.reader import StoreReader


def open_reader(path: str, *, allow_live: bool = False) -> StoreReader:
    """Open the archive or store at a path or URI. Raises as ``StoreReader.open``."""
    if archive_files.is_archive(path):
        from reput.spark.archive import (
            view as archive_view,  # Parquet, which reads of stores do not need
        )

        return archive_view.ArchiveReader.open(path)
    return StoreReader.open(path, allow_live=allow_live)


def check_paths(options: ReadOptions) -> None:
    """Look for the stores of a read, before it is planned.

    Raises:
        InvalidOption: No store folder matches a pattern.
        StoreUnavailable: There is no store or archive at a path, or a broker is using it.
    """
    for path in store_paths(options):
        if not archive_files.is_archive(path):
            StoreReader.open(path, allow_live=options.allow_live)


def store_paths(options: ReadOptions) -> list[str]:
    """Return the store folders of a read: plain paths, and matches of ``/data/*/store``.

    Raises:
        InvalidOption: No store folder matches a pattern.
    """
    folders = []
    for path in options.paths:
        if "://" in path or not glob.has_magic(path) or Path(path).exists():
            folders.append(path)
            continue
        matches = sorted(glob.glob(path))  # noqa: PTH207 - Path would not take it absolute
        stores = [
            match
            for match in matches
            if Path(match, paths.COMMIT_LOG).is_dir() or archive_files.is_archive(match)
        ]
        if not stores:
            raise InvalidOption("path", path, "a pattern that matches folders with a commitlog")
        folders += stores
    return folders
