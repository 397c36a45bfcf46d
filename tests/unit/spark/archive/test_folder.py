"""The folder of an archive: its paths come from manifests, which others may have written."""

from pathlib import Path

import pytest

from reput.errors import StoreUnavailable
from reput.spark.archive.folder import archive_folder


@pytest.mark.parametrize("outside", ["../victim", "a/../../victim", "/etc/hostname"])
@pytest.mark.parametrize("kind", ["path", "uri"])
def test_paths_stay_below_the_archive(tmp_path: Path, outside: str, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"PAR1")
    root = tmp_path / "archive"
    (root / "a").mkdir(parents=True)
    folder = archive_folder(str(root) if kind == "path" else f"file://{root}")
    for act in (
        lambda: folder.open_parquet(outside),
        lambda: folder.delete(outside),
        lambda: folder.put(outside, b"changed"),
        lambda: folder.files(outside),
    ):
        with pytest.raises(StoreUnavailable, match="is not in the folder; allowed"):
            act()
    assert victim.read_bytes() == b"PAR1"
