"""The files that keep a broker's id in its replica group.

    brokerIdentity        cluster#name#id             the id that the controller has given
    brokerIdentity-temp   cluster#name#id#check code  an id that the broker has applied for

The controller gives an id to one check code only: a broker that dies between the application and
its own file applies with the same code again. Source: rocketmq 5.5.0 ``BrokerMetadata``,
``TempBrokerMetadata``.
"""

from pathlib import Path
from typing import NamedTuple

from reput.errors import StoreUnavailable, excerpt
from reput.store.files.disk import Disk

TEMPORARY_SUFFIX = "-temp"
FIRST_ID = 1


class Application(NamedTuple):
    """An application for an id."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """The files of a broker.

    Args:
        path: Path of ``brokerIdentity``.
        cluster: The broker's cluster.
        name: The broker's name.
        disk: Writes the files.
    """

    def __init__(self, path: str, cluster: str, name: str, disk: Disk) -> None:
        self._path = path
        self._cluster = cluster
        self._name = name
        self._disk = disk

    def broker_id(self) -> int | None:
        """Return the broker's id; None if it has none yet.

        Raises:
            StoreUnavailable: The file is damaged, or of another broker.
        """
        words = self._read(self._path, 3)
        return None if words is None else int(words[0])

    def application(self) -> Application | None:
        """Return the application that was begun; None without one. Raises ``StoreUnavailable``."""
        words = self._read(self._path + TEMPORARY_SUFFIX, 4)
        return None if words is None else Application(int(words[0]), words[1])

    def _read(self, path: str, count: int) -> list[str] | None:
        """Return the words after cluster and name."""
        try:
            text = Path(path).read_text("utf-8", "replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
        words = text.strip().split("#", count - 1)
        if len(words) != count or not words[2].isdecimal() or int(words[2]) < FIRST_ID:
            form = "cluster#name#id" + ("#code" if count > 3 else "")
            raise StoreUnavailable(f"{path} is damaged: {excerpt(text)!r} is not {form}")
        if words[:2] != [self._cluster, self._name]:
            raise StoreUnavailable(
                f"{path} is of the broker {words[1]!r} in the cluster {words[0]!r}, but this is "
                f"{self._name!r} in {self._cluster!r}. Was the folder copied? Then delete the file"
            )
        return words[2:]

    def write_application(self, application: Application) -> None:
        """Write an application durably, before it is sent. Raises ``WriteFailed``."""
        text = "#".join((self._cluster, self._name, *map(str, application)))
        self._disk.replace(self._path + TEMPORARY_SUFFIX, text.encode())

    def write_id(self, broker_id: int) -> None:
        """Write the id that the controller has given durably. Raises ``WriteFailed``."""
        text = "#".join((self._cluster, self._name, str(broker_id)))
        self._disk.replace(self._path, text.encode())
        self._disk.unlink(self._path + TEMPORARY_SUFFIX)

    def forget_application(self) -> None:
        """Delete an application for an id that another broker has got. Raises ``WriteFailed``."""
        self._disk.unlink(self._path + TEMPORARY_SUFFIX)
