"""The users file: one line a user, with role, password hash and patterns.

    # name  role      hash of the password   topics and groups that exist for the user
    ann     admin     scrypt$16384$8$1$...
    bob     reader    scrypt$16384$8$1$...   topics=Orders*,Bills groups=billing-*
    eve     operator  -

A hash of ``-`` is that of a user who comes through a proxy and has no password here.
"""

import base64
import functools
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reput.console.access import ALL, ROLES, User
from reput.errors import ReputError, one_of
from reput.file_sync import sync_folder

NO_PASSWORD = "-"
PASSWORD_LETTERS_MIN = 8
PASSWORD_LETTERS_MAX = 1_000
_COST, _BLOCK_SIZE, _PARALLELISM = 16_384, 8, 1
_MEMORY_BYTES_MAX = 64 * 1024 * 1024
_SALT_BYTES, _KEY_BYTES = 16, 32
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}\Z")


class BadUsers(ReputError):
    """The users file cannot be read, or a user cannot be added."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user, and the hash of the password."""

    user: User
    role: str
    password_hash: str

    def line(self) -> str:
        """Return the line of this account in the users file."""
        words = [self.user.name, self.role, self.password_hash]
        for name, patterns in (("topics", self.user.topics), ("groups", self.user.groups)):
            if patterns != ALL:
                words.append(f"{name}={','.join(patterns)}")
        return " ".join(words)


def load(path: Path) -> dict[str, Account]:
    """Return the accounts of a file by name. Raises ``BadUsers``, which names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsers(f"cannot read the users file {path}: {error}") from error
    accounts: dict[str, Account] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            account = _account(words)
        except BadUsers as error:
            raise BadUsers(f"{path}, line {number}: {error}") from error
        if account.user.name in accounts:
            raise BadUsers(f"{path}, line {number}: user {account.user.name} is there twice")
        accounts[account.user.name] = account
    return accounts


def make(
    name: str,
    role: str,
    password: str | None,
    *,
    topics: tuple[str, ...] = ALL,
    groups: tuple[str, ...] = ALL,
) -> Account:
    """Return an account.

    Args:
        name: Name of the user.
        role: One of ``access.ROLES``.
        password: The password; None: the user comes through a proxy.
        topics: Patterns of topics.
        groups: Patterns of groups.

    Raises:
        BadUsers: A value is not allowed.
    """
    if password is not None and not (PASSWORD_LETTERS_MIN <= len(password) <= PASSWORD_LETTERS_MAX):
        raise BadUsers(
            f"the password has {len(password)} characters; allowed: {PASSWORD_LETTERS_MIN} "
            f"to {PASSWORD_LETTERS_MAX}"
        )
    for pattern in (*topics, *groups):
        if not pattern or re.search(r"[\s,#]", pattern):
            raise BadUsers(f"pattern {pattern!r}: allowed are texts without blanks, ',' and '#'")
    words = [name, role, NO_PASSWORD if password is None else hash_password(password)]
    account = _account(words)
    return Account(User(name, account.user.right, topics, groups), role, account.password_hash)


def save(path: Path, accounts: Mapping[str, Account]) -> None:
    """Replace a users file, readable for its owner alone. Raises ``BadUsers``."""
    text = "".join(f"{account.line()}\n" for _, account in sorted(accounts.items()))
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise BadUsers(f"cannot write the users file {path}: {error.strerror}") from error


def hash_password(password: str) -> str:
    """Return the hash of a password, with a new salt and the costs."""
    salt = os.urandom(_SALT_BYTES)
    key = _scrypt(password, salt, _COST, _BLOCK_SIZE, _PARALLELISM)
    texts = (base64.b64encode(part).decode() for part in (salt, key))
    return "$".join(("scrypt", str(_COST), str(_BLOCK_SIZE), str(_PARALLELISM), *texts))


@functools.cache
def unknown_user_hash() -> str:
    """Return the hash for an unknown user's password, which then takes as long as a known one's."""
    return hash_password("")


def has_password(password_hash: str, password: str) -> bool:
    """Return whether a password has this hash; takes about 50 ms, and 16 MiB."""
    if len(password) > PASSWORD_LETTERS_MAX or not password:
        return False
    cost, block_size, parallelism, salt, key = _split(password_hash)
    computed = _scrypt(password, salt, cost, block_size, parallelism)
    return hmac.compare_digest(computed, key)


def _scrypt(password: str, salt: bytes, cost: int, block_size: int, parallelism: int) -> bytes:
    return hashlib.scrypt(
        password.encode(errors="surrogatepass"),
        salt=salt,
        n=cost,
        r=block_size,
        p=parallelism,
        maxmem=_MEMORY_BYTES_MAX,
        dklen=_KEY_BYTES,
    )


def _split(password_hash: str) -> tuple[int, int, int, bytes, bytes]:
    """Return the costs, the salt and the key of a hash. Raises ``BadUsers``."""
    wrong = BadUsers(
        "the hash is not scrypt$N$R$P$SALT$KEY of less than 64 MiB; "
        "`reput console user add` writes one"
    )
    try:
        kind, *costs, salt_text, key_text = password_hash.split("$")
        cost, block_size, parallelism = map(int, costs)
        salt = base64.b64decode(salt_text, validate=True)
        key = base64.b64decode(key_text, validate=True)
    except ValueError:
        raise wrong from None
    memory_bytes = 128 * cost * block_size * parallelism
    if kind != "scrypt" or cost < 2 or not 0 < memory_bytes < _MEMORY_BYTES_MAX:
        raise wrong
    if len(key) != _KEY_BYTES:
        raise wrong
    return cost, block_size, parallelism, salt, key


def _account(words: list[str]) -> Account:
    if len(words) < 3:
        raise BadUsers("allowed is NAME ROLE HASH [topics=PATTERNS] [groups=PATTERNS]")
    name, role, password_hash, *limits = words
    if not _NAME.match(name):
        raise BadUsers(f"name {name[:80]!r}: allowed are 1 to 64 letters, digits and . _ @ -")
    if role not in ROLES:
        raise BadUsers(f"role {role[:80]!r}: allowed is {one_of(role, ROLES)}")
    if password_hash != NO_PASSWORD:
        _split(password_hash)
    patterns: dict[str, tuple[str, ...]] = {"topics": ALL, "groups": ALL}
    for word in limits:
        key, _, value = word.partition("=")
        if key not in patterns or not value:
            raise BadUsers(f"{word[:80]!r}: allowed are topics=PATTERNS and groups=PATTERNS")
        patterns[key] = tuple(value.split(","))
    user = User(name, ROLES[role], patterns["topics"], patterns["groups"])
    return Account(user, role, password_hash)
