"""``console.toml``: controllers, and the stores that the console shows, by name.

    controllers = ["10.0.0.1:9878", "10.0.0.2:9878"]

    [stores.old-broker]
    path = "/data/rocketmq/store"
    live = true

Paths come from this file alone. A browser sends names, so that no request reads another folder.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.errors import InvalidOption

STORES_MAX = 200
_NAME_LETTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store folder that the console shows."""

    name: str
    path: str
    """Local path, absolute, or URI."""
    may_be_live: bool = False
    """Read the store although a broker may be running on it."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The contents of the file."""

    stores: Mapping[str, StorePlace] = field(default_factory=dict)
    controllers: Sequence[str] = ()
    """Addresses of controllers; empty: those in the settings of the brokers."""


def load(path: Path) -> ConsoleSettings:
    """Read the file. Relative paths in it start at its folder.

    Raises:
        InvalidOption: It cannot be read, or has a name or value that is not allowed.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidOption("--config", str(path), f"a file: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise InvalidOption("--config", str(path), f"a file in TOML: {error}") from error
    _check_names("", values, {"controllers", "stores"})
    stores = _table("stores", values.get("stores", {}))
    if len(stores) > STORES_MAX:
        raise InvalidOption("stores", len(stores), f"at most {STORES_MAX} stores")
    return ConsoleSettings(
        {name: _store(name, table, path.parent) for name, table in stores.items()},
        _addresses(values.get("controllers", [])),
    )


def _addresses(value: object) -> list[str]:
    addresses = []
    for address in value if isinstance(value, list) else [value]:
        if not isinstance(address, str) or not address.rpartition(":")[2].isdecimal():
            raise InvalidOption("controllers", address, 'addresses: ["10.0.0.1:9878"]')
        addresses.append(address)
    return addresses


def _store(name: str, value: object, folder: Path) -> StorePlace:
    where = f"stores.{name}"
    if not _is_name(name):
        raise InvalidOption("stores", name, "names of letters, digits, - and _")
    table = _table(where, value)
    _check_names(where, table, {"path", "live"})
    path, live = table.get("path"), table.get("live", False)
    if not isinstance(path, str) or not path:
        raise InvalidOption(f"{where}.path", path, "the path or URI of a store folder")
    if not isinstance(live, bool):
        raise InvalidOption(f"{where}.live", live, "true or false")
    if "://" not in path:
        path = str((folder / path).absolute())
    return StorePlace(name, path, live)


def _is_name(name: str) -> bool:
    return (
        0 < len(name) <= _NAME_LETTERS_MAX
        and name.isascii()
        and name.replace("-", "").replace("_", "").isalnum()
    )


def _table(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidOption(name, value, f"a table: [{name}]")
    return value


def _check_names(where: str, table: Mapping[str, object], allowed: set[str]) -> None:
    for name in table:
        if name not in allowed:
            full = f"{where}.{name}" if where else name
            raise InvalidOption(full, table[name], f"only {', '.join(sorted(allowed))} here")
