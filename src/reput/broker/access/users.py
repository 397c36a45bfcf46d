"""users.json: the users of access control 2.0.

    {"userTable": {"alice": {"password": …, "userStatus": "enable", "userType": "Normal"}}}

Passwords are plain text, since signatures need them: the file has mode 0600. Java has the same
values in RocksDB.
"""

from typing import NamedTuple

from reput.errors import CorruptRecord, InvalidOption
from reput.format.access import UserStatus, UserType
from reput.secret import Secret
from reput.store.files import paths
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import SavedTable


class User(NamedTuple):
    """A user, whose name is the access key of its requests."""

    name: str
    password: Secret
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        """True if the user may do everything."""
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        """False if the user may do nothing."""
        return self.status is UserStatus.ENABLE


class UserTable(SavedTable):
    """The users by name."""

    path = paths.USERS
    entries_member = "userTable"
    is_secret = True
    _users: dict[str, User]

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        """Return a user; None if there is none."""
        return self._users.get(name)

    def all(self) -> list[User]:
        """Return all users, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def put(self, user: User) -> None:
        """Add or replace a user."""
        self._users[user.name] = user
        self._note(user.name)

    def delete(self, name: str) -> bool:
        """Remove a user; return False if there is none."""
        if self._users.pop(name, None) is None:
            return False
        self._note(name)
        return True

    def _note(self, name: str) -> None:
        self._changed.add(name)
        self.is_dirty = True
        self.change_count += 1

    def _decode(self, entries: Table) -> None:
        self._users = {}
        for name, value in entries.items():
            try:
                self._users[name] = user_of(name, value)
            except InvalidOption as error:
                raise CorruptRecord(f"user {name!r}: {error}", file=self.path) from None
        self._changed = set(self._users)

    def _stored_entry(self, key: str) -> Table | None:
        user = self._users.get(key)
        if user is None:
            return None
        return {
            "password": user.password.reveal(),
            "userStatus": user.status.text,
            "userType": user.type.text,
        }


def user_of(name: str, value: Table) -> User:
    """Return a user from its form in the file or in a reply of a broker.

    Raises:
        InvalidOption: It is not the form of a user; the message never has the password.
    """
    password = value.get("password")
    if not isinstance(password, str) or not password:
        raise InvalidOption("password", "", "a text")
    kind = UserType.parse(str(value.get("userType", UserType.NORMAL.text)))
    status = UserStatus.parse(str(value.get("userStatus", UserStatus.ENABLE.text)))
    return User(name, Secret(password), kind, status)
