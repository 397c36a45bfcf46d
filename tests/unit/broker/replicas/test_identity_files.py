"""The id of a broker in its group: the files of Java, and what damages them."""

from pathlib import Path

import pytest

from cases import case
from reput.broker.replicas.identity_files import Application, IdentityFiles
from reput.errors import StoreUnavailable
from reput.store.files.disk import Disk

CODE = "10.0.0.1:10911;1700000000000"


def files_of(folder: Path, name: str = "broker-a") -> IdentityFiles:
    return IdentityFiles(str(folder / "brokerIdentity"), "DefaultCluster", name, Disk())


def test_an_id_is_applied_for_and_then_kept(tmp_path: Path) -> None:
    """The texts are those of a broker of RocketMQ 5.5.0."""
    files = files_of(tmp_path)
    identity, temporary = tmp_path / "brokerIdentity", tmp_path / "brokerIdentity-temp"
    assert (files.broker_id(), files.application()) == (None, None)
    files.write_application(Application(1, CODE))
    assert temporary.read_text() == f"DefaultCluster#broker-a#1#{CODE}"
    assert files_of(tmp_path).application() == Application(1, CODE)
    assert files_of(tmp_path).broker_id() is None
    files.write_id(1)
    assert identity.read_text() == "DefaultCluster#broker-a#1"
    assert not temporary.exists()
    assert files_of(tmp_path).broker_id() == 1
    files.write_application(Application(7, CODE))
    files.forget_application()
    assert files_of(tmp_path).application() is None


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    whole = f"DefaultCluster#broker-a#1#{CODE}"
    rows = [
        ("", "is damaged"),
        ("DefaultCluster#broker-a", "is damaged"),
        ("DefaultCluster#broker-a#", "is damaged"),
        ("DefaultCluster#broker-a#one", "is damaged"),
        ("DefaultCluster#broker-a#-1", "is damaged"),
        ("DefaultCluster#broker-a#0", "is damaged"),  # that of a master without a controller
        (whole, "is damaged"),  # of the other file
        ("\0" * 25, "is damaged"),
        ("DefaultCluster#broker-b#1", "is of the broker 'broker-b' in the cluster 'Def"),
        ("Other#broker-a#1", "in the cluster 'Other'.*Was the folder copied"),
    ]
    path = tmp_path / "brokerIdentity"
    for text, problem in rows:
        path.write_text(text)
        with case(text), pytest.raises(StoreUnavailable, match=problem):
            files_of(tmp_path).broker_id()
    temporary = tmp_path / "brokerIdentity-temp"
    for size in range(whole.index("#1#") + 2):
        temporary.write_text(whole[:size])
        with case(size), pytest.raises(StoreUnavailable, match="is damaged"):
            files_of(tmp_path).application()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        files_of(tmp_path).broker_id()
