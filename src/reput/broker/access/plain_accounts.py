"""Accounts of access control 1.0, and the YAML of the files that have them.

    globalWhiteRemoteAddresses: [10.0.3.*]
    accounts:
    - accessKey: some-user               # more than 6 characters, as the next
      secretKey: a secret text
      whiteRemoteAddress: 10.0.4.7       # its requests from there are not checked
      admin: false
      defaultTopicPerm: DENY             # PUB, SUB, PUB|SUB or DENY; without it DENY
      defaultGroupPerm: SUB
      topicPerms: [TopicA=PUB|SUB]
      groupPerms: [group-a=SUB]
    dataVersion: [{counter: 3, timestamp: 1795348485949}]

Java reads YAML 1.1, in which ``012345`` is an octal number and ``yes`` a boolean; a number that is
a key counts as its decimal text. Unknown keys and permissions, which Java ignores or takes for
DENY, are refused. Errors name file and line, and never show a secret.
Source: rocketmq 4.9.7 ``PlainPermissionManager``, ``Permission``.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from reput.broker.access.plain_addresses import NO_ADDRESS, AddressSet, parse_pattern, union
from reput.errors import InvalidOption
from reput.extras import install_command
from reput.format import names
from reput.format.bodies import DataVersion
from reput.secret import NO_SECRET, Secret

WHITE_ADDRESSES = "globalWhiteRemoteAddresses"
ACCOUNTS = "accounts"
DATA_VERSION = "dataVersion"
ACCESS_KEY = "accessKey"
SECRET_KEY = "secretKey"
WHITE_ADDRESS = "whiteRemoteAddress"
ADMIN = "admin"
DEFAULT_TOPIC = "defaultTopicPerm"
DEFAULT_GROUP = "defaultGroupPerm"
TOPICS = "topicPerms"
GROUPS = "groupPerms"

KEY_LETTERS_MIN = 7
"""Minimum length of access keys and secret keys."""

_FILE_KEYS = (WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION)
_ACCOUNT_KEYS = (
    ACCESS_KEY, SECRET_KEY, WHITE_ADDRESS, ADMIN, DEFAULT_TOPIC, DEFAULT_GROUP, TOPICS, GROUPS
)  # fmt: skip
_VERSION_KEYS = ("counter", "timestamp", "stateVersion")
_LIKE_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9_]+)[eE][-+]?[0-9]+")
"""Texts that SnakeYAML takes for a number, and PyYAML does not."""
_LIKE_OTHERS = re.compile(r"[-+.0-9].*", re.DOTALL)
"""Texts that are written in quotes, since YAML readers disagree about them."""
_QUOTE = "a text in quotes: 'this is one'"
_WIDTH = 1 << 20
_DEPTH_MAX = 20

_T = TypeVar("_T")
_Node: TypeAlias = Any
"""A node of PyYAML, which is imported only where it is needed."""


class Permission(enum.IntFlag):
    """Permission of an account for a topic or group, with Java's numbers."""

    DENY = 1
    PUB = 4
    SUB = 8


PERMISSIONS: Mapping[str, Permission] = {
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
    "DENY": Permission.DENY,
}
"""Permission by its text in a file."""


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """An account of access control 1.0."""

    access_key: str
    secret_key: Secret
    is_admin: bool = False
    white_addresses: AddressSet = NO_ADDRESS
    """Addresses from which its requests are not checked."""
    white_text: str = ""
    """The pattern of those addresses."""
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    permissions: Mapping[str, Permission] = field(default_factory=dict)
    """Permission by topic; for a group, by its retry topic."""


@dataclass(frozen=True, slots=True)
class PlainFile:
    """Content of a file."""

    path: str
    white_addresses: AddressSet = NO_ADDRESS
    white_texts: tuple[str, ...] = ()
    """Patterns of ``white_addresses``, as the file has them."""
    accounts: tuple[PlainAccount, ...] = ()
    version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class PlainAccounts:
    """All accounts and white addresses, of all files."""

    files: tuple[PlainFile, ...] = ()
    accounts: Mapping[str, PlainAccount] = field(default_factory=dict)
    """Account by access key."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Path of the file of an account, by access key."""
    white_addresses: AddressSet = NO_ADDRESS
    repeated: tuple[tuple[str, str], ...] = ()
    """Access key and path of each account that is ignored: an earlier account has the same key."""


def merge(files: Iterable[PlainFile]) -> PlainAccounts:
    """Return the accounts of all files; of two with the same access key, the first one."""
    accounts: dict[str, PlainAccount] = {}
    paths: dict[str, str] = {}
    repeated = []
    parts = tuple(files)
    for part in parts:
        for account in part.accounts:
            if account.access_key in accounts:
                repeated.append((account.access_key, part.path))
            else:
                accounts[account.access_key] = account
                paths[account.access_key] = part.path
    white = union(part.white_addresses for part in parts)
    return PlainAccounts(parts, accounts, paths, white, tuple(repeated))


# Reading ------------------------------------------------------------------------------------------


def parse(data: bytes, path: str) -> PlainFile:
    """Return the content of a file, which may be empty.

    Args:
        data: The bytes of the file.
        path: Its path, for errors.

    Raises:
        InvalidOption: Something in it is wrong.
    """
    yaml, loader_class = _yaml_loader()
    try:
        text = data.decode("utf-8-sig")
        _check_depth(yaml.parse(text, loader_class), path)
        loader = loader_class(text)
        try:
            root = loader.get_single_node()
            return _Reader(path, loader).file(root)
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        raise InvalidOption(path, "bytes", "a file of UTF-8 text") from None
    except yaml.YAMLError as error:
        # Neither the text nor the cause is shown: they may have a secret.
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = path if mark is None else f"{path}, line {mark.line + 1}"
        allowed = f"YAML; a text with signs such as : # * & ! % @ is {_QUOTE}"
        raise InvalidOption(place, "no YAML", allowed) from None


def parse_permission(text: str, name: str) -> Permission:
    """Return a permission by its text.

    Raises:
        InvalidOption: It is none.
    """
    permission = PERMISSIONS.get(text.strip())
    if permission is None:
        raise InvalidOption(name, text, ", ".join(PERMISSIONS))
    return permission


def load_yaml(data: bytes) -> dict[str, Any]:
    """Return the content of a file that ``parse`` accepts, as mappings and lists."""
    yaml, loader_class = _yaml_loader()
    content = yaml.load(data.decode("utf-8-sig"), loader_class)
    return content if isinstance(content, dict) else {}


def dump_yaml(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file, with its keys in their order.

    Texts that readers of YAML take for different things are in quotes.
    """
    yaml, _ = _yaml_loader()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Writes texts that look like numbers in quotes."""

    def text_node(dumper: Any, text: str) -> Any:
        style = "'" if _LIKE_OTHERS.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, text_node)
    Dumper.ignore_aliases = lambda *_: True
    text: str = yaml.dump(
        dict(content), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    return text.encode()


def _yaml_loader() -> tuple[Any, Any]:
    """Return PyYAML, which only access control 1.0 needs, and its loader."""
    try:
        import yaml
    except ImportError:
        allowed = f"false, or true with PyYAML installed: {install_command('acl')}"
        raise InvalidOption("aclEnable", True, allowed) from None
    return yaml, getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_depth(events: Iterable[Any], path: str) -> None:
    """Refuse deep content before a recursive function reads it."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if depth > _DEPTH_MAX:
            place = f"{path}, line {event.start_mark.line + 1}"
            raise InvalidOption(place, "lists in lists", f"{_DEPTH_MAX} levels")


class _Reader:
    """Reads the nodes of a file.

    Args:
        path: Path of the file, for errors.
        loader: Loader that gives the values of scalars.
    """

    def __init__(self, path: str, loader: Any) -> None:
        self._path = path
        self._loader = loader

    def file(self, root: _Node | None) -> PlainFile:
        """Return the content of a file."""
        if root is None or self._is_null(root):
            return PlainFile(self._path)
        nodes = self._mapping(root, "the file", _FILE_KEYS)
        white = self._list(nodes.get(WHITE_ADDRESSES), WHITE_ADDRESSES, self._pattern)
        return PlainFile(
            self._path,
            union(addresses for _, addresses in white),
            tuple(text for text, _ in white if text),
            tuple(self._list(nodes.get(ACCOUNTS), ACCOUNTS, self._account)),
            self._version(nodes.get(DATA_VERSION)),
        )

    def _account(self, node: _Node, name: str) -> PlainAccount:
        nodes = self._mapping(node, f"an entry of {name}", _ACCOUNT_KEYS)
        access_key = self._key(nodes.get(ACCESS_KEY), node, ACCESS_KEY)
        secret_key = Secret(self._key(nodes.get(SECRET_KEY), node, SECRET_KEY))
        white_text, white = "", NO_ADDRESS
        if WHITE_ADDRESS in nodes:
            white_text, white = self._pattern(nodes[WHITE_ADDRESS], WHITE_ADDRESS)
        permissions = {
            names.retry_topic(group): permission
            for group, permission in self._list(nodes.get(GROUPS), GROUPS, self._permission)
        }
        permissions.update(self._list(nodes.get(TOPICS), TOPICS, self._permission))
        return PlainAccount(
            access_key,
            secret_key,
            self._flag(nodes.get(ADMIN), ADMIN),
            white,
            white_text,
            self._default(nodes.get(DEFAULT_TOPIC), DEFAULT_TOPIC),
            self._default(nodes.get(DEFAULT_GROUP), DEFAULT_GROUP),
            permissions,
        )

    def _key(self, node: _Node | None, account: _Node, name: str) -> str:
        """Return an access key or a secret key."""
        text = None if node is None else self._text(node, name)
        if text is None or len(text) < KEY_LETTERS_MIN:
            shown = NO_SECRET if name == SECRET_KEY and text else text
            allowed = f"a text of {KEY_LETTERS_MIN} characters or more"
            raise InvalidOption(self._place(node or account, name), shown, allowed)
        return text

    def _pattern(self, node: _Node, name: str) -> tuple[str, AddressSet]:
        text = self._text(node, name) or ""
        return text.strip(), parse_pattern(text, self._place(node, name))

    def _permission(self, node: _Node, name: str) -> tuple[str, Permission]:
        """Return name and permission of ``TopicA=PUB|SUB``."""
        text = self._text(node, name) or ""
        parts = [part for part in text.split("=") if part]
        if len(parts) != 2 or not parts[0].strip():
            raise InvalidOption(self._place(node, name), text, "a name, =, and a permission")
        return parts[0].strip(), parse_permission(parts[1], self._place(node, name))

    def _default(self, node: _Node | None, name: str) -> Permission:
        text = None if node is None else self._text(node, name)
        if node is None or text is None:
            return Permission.DENY
        return parse_permission(text, self._place(node, name))

    def _version(self, node: _Node | None) -> DataVersion:
        for entry in self._list(node, DATA_VERSION, lambda entry, _: entry):
            nodes = self._mapping(entry, f"an entry of {DATA_VERSION}", _VERSION_KEYS)
            numbers = {key: self._number(value, key) for key, value in nodes.items()}
            return DataVersion(
                counter=numbers.get("counter", 0),
                timestamp=numbers.get("timestamp", 0),
                state_version=numbers.get("stateVersion", 0),
            )
        return DataVersion()

    def _mapping(self, node: _Node, name: str, keys: tuple[str, ...]) -> dict[str, _Node]:
        """Return the nodes of a mapping by their keys, which must be among ``keys``."""
        if node.id != "mapping":
            raise InvalidOption(
                self._place(node, name), f"a {node.id}", f"lines `key: value` of {', '.join(keys)}"
            )
        nodes: dict[str, _Node] = {}
        for key_node, value in node.value:
            key = str(key_node.value) if key_node.id == "scalar" else ""
            if key not in keys:
                raise InvalidOption(self._place(key_node, "a key"), key, ", ".join(keys))
            if key in nodes:
                raise InvalidOption(self._place(key_node, "a key"), key, "each key once")
            nodes[key] = value
        return nodes

    def _list(self, node: _Node | None, name: str, read: Callable[[_Node, str], _T]) -> list[_T]:
        """Return the entries of a list; no entries if it is missing."""
        if node is None or self._is_null(node):
            return []
        if node.id != "sequence":
            raise InvalidOption(self._place(node, name), f"a {node.id}", "a list")
        return [read(entry, name) for entry in node.value]

    def _text(self, node: _Node, name: str) -> str | None:
        """Return a value as text, also a whole number or boolean; None if it is missing."""
        if node.id != "scalar":
            raise InvalidOption(self._place(node, name), f"a {node.id}", "a text")
        try:
            value = self._loader.construct_object(node)
            if isinstance(value, int):
                return str(value).lower()  # also of a boolean
        except ValueError:  # a number without digits, or of thousands
            value = node
        if value is None:
            return None
        if isinstance(value, str) and (node.style or not _LIKE_NUMBER.fullmatch(value)):
            return value
        # The text of a fraction or a time in Java is not what the file shows.
        kind = node.tag.rpartition(":")[2]
        raise InvalidOption(self._place(node, name), f"a YAML {kind}", _QUOTE)

    def _flag(self, node: _Node | None, name: str) -> bool:
        text = None if node is None else self._text(node, name)
        if node is None or text is None:
            return False
        if text.lower() not in ("true", "false"):
            raise InvalidOption(self._place(node, name), text, "true or false")
        return text.lower() == "true"

    def _number(self, node: _Node, name: str) -> int:
        text = self._text(node, name) or ""
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise InvalidOption(self._place(node, name), text, "a whole number")
        return int(text)

    def _is_null(self, node: _Node) -> bool:
        return (node.id, node.tag) == ("scalar", "tag:yaml.org,2002:null")

    def _place(self, node: _Node, name: str) -> str:
        return f"{self._path}, line {node.start_mark.line + 1}: {name}"
