"""Loads settings: frozen dataclasses, filled from RocketMQ's own files.

    defaults < file < environment < explicit

A file is a broker.conf, in the syntax of Java's ``Properties``. Its camelCase keys map to fields
mechanically: ``flushDiskType`` is ``flush_disk_type``, and ``REPUT_FLUSH_DISK_TYPE`` in the
environment. Java ignores a value that it cannot convert and an unknown key. Here the former is an
error, and the latter is returned by name, for the caller to report.

One file holds the settings of several parts: make each from the same ``Settings``, and call
``unknown`` at the end.
"""

import codecs
import dataclasses
import enum
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from reput.errors import InvalidOption, InvalidOptions, excerpt, similar_name
from reput.secret import Secret

ENVIRONMENT_PREFIX = "REPUT_"

JAVA_INT_MAX = (1 << 31) - 1
JAVA_LONG_MAX = (1 << 63) - 1

_ACRONYMS = ("CRC", "IP1", "IP2")
"""Words in capitals in RocketMQ's keys, with which the mapping is exact in both directions."""

_SPACE = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_PAIR = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_IN_KEYS = re.compile("[=: #!]")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{0,15})?")
_SHARE = re.compile(r"(0?|1)\.[0-9]{1,9}")

_KEY_LETTERS_MAX = 64
"""Longest key that is compared with known keys, as comparing takes long."""
_SUGGESTIONS_MAX = 10
"""Unknown keys for which a similar key is searched, which takes milliseconds each."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed range of a number; the annotation of a field: ``Annotated[int, Range(1)]``."""

    least: int
    most: int = JAVA_INT_MAX


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a part that are not fields: its class variable ``keys``."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Alternative name -> key. Under an alternative name, a percentage may be a fraction below 1.
    """
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Key -> why it has no effect."""
    only: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Key -> its only accepted value, and the reason."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A key that no part has."""

    key: str
    """The key as given."""
    origin: str
    """The file, ``environment`` or ``explicit``."""
    suggestion: str | None
    """A similar known key."""

    def __str__(self) -> str:
        """Return a sentence for the log."""
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{self.origin}: unknown key {excerpt(self.key)!r}{hint}"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A part's settings, with other keys that were set."""

    value: T
    unknown: tuple[Unknown, ...]
    without_effect: Mapping[str, str]
    """Keys that were set without effect -> the reason."""


@dataclass(frozen=True, slots=True)
class _GivenValue:
    """A value as given."""

    name: str
    key: str
    value: object
    origin: str


def load(
    part: type[T],
    source: Mapping[str, object] | str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    explicit: Mapping[str, object] | None = None,
) -> Loaded[T]:
    """Return the settings of one part. Arguments and errors are those of ``Settings``."""
    settings = Settings(source, environment=environment, explicit=explicit)
    value = settings.make(part)
    return Loaded(value, settings.unknown(), settings.without_effect)


class Settings:
    """All values that were given, for all parts.

    Args:
        source: A .properties file, or its content: camelCase key -> value.
        environment: ``os.environ``; only names that begin with ``REPUT_`` are used.
        explicit: snake_case field -> value, text or of the field's type; highest precedence.

    Raises:
        InvalidOption: The file cannot be read, or has an escape that Java refuses.
    """

    def __init__(
        self,
        source: Mapping[str, object] | str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        explicit: Mapping[str, object] | None = None,
    ) -> None:
        self.without_effect: dict[str, str] = {}
        self._known: set[str] = set()
        self._layers: list[list[_GivenValue]] = [
            _of_source(source),
            [
                _GivenValue(
                    name,
                    key_of(name.removeprefix(ENVIRONMENT_PREFIX).lower()),
                    value,
                    "environment",
                )
                for name, value in (environment or {}).items()
                if name.startswith(ENVIRONMENT_PREFIX)
            ],
            [
                _GivenValue(name, key_of(name), value, "explicit")
                for name, value in (explicit or {}).items()
            ],
        ]

    def make(self, part: type[T]) -> T:
        """Return a part's settings: an instance of its dataclass.

        Raises:
            InvalidOption: A value is not allowed, or a setting was given under two names; also
                ``InvalidOptions``, for several of them.
        """
        fields = _fields(part)
        keys: Keys = getattr(part, "keys", Keys())
        self._known |= {*fields, *keys.renamed, *keys.without_effect, *keys.only}
        values: dict[str, Any] = {}
        problems: list[InvalidOption] = []
        for layer in self._layers:
            in_layer: dict[str, str] = {}
            for given in layer:
                key = keys.renamed.get(given.key, given.key)
                try:
                    if given.key in keys.without_effect:
                        self.without_effect[given.key] = keys.without_effect[given.key]
                    elif given.key in keys.only:
                        _check_only(given, *keys.only[given.key])
                    elif key in fields:
                        if key in in_layer:
                            other = f"one of {in_layer[key]} and {given.name}, not both"
                            raise InvalidOption(given.name, given.value, other)
                        in_layer[key] = given.name
                        name, hint = fields[key]
                        values[name] = _convert(given, hint, is_renamed=key != given.key)
                except InvalidOption as error:
                    problems.append(error)
        try:
            made = part(**values)
        except InvalidOption as error:
            problems.append(error)
        else:
            if not problems:
                return made
        raise problems[0] if len(problems) == 1 else InvalidOptions(problems)

    def problems(self, parts: Iterable[type]) -> list[InvalidOption]:
        """Return the values of some parts that are not allowed."""
        problems: list[InvalidOption] = []
        for part in parts:
            try:
                self.make(part)
            except InvalidOptions as error:
                problems += error.problems
            except InvalidOption as error:
                problems.append(error)
        return problems

    def unknown(self) -> tuple[Unknown, ...]:
        """Return the keys that no part made so far has, in the given order."""
        unknown_keys: list[Unknown] = []
        for given in (given for layer in self._layers for given in layer):
            if given.key not in self._known:
                may_be_alike = (
                    len(unknown_keys) < _SUGGESTIONS_MAX and len(given.key) <= _KEY_LETTERS_MAX
                )
                suggestion = similar_name(given.key, self._known) if may_be_alike else None
                unknown_keys.append(Unknown(given.name, given.origin, suggestion))
        return tuple(unknown_keys)


def home_folder() -> Path | None:
    """Return the home folder; None if it does not exist or this user may not enter it.

    A service may run as a user without a home, or with HOME of another one.
    """
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and an unknown user
        return None
    # Path.exists() raises for a folder inside of one that may not be entered.
    folder = next(path for path in (home, *home.parents) if os.path.exists(path))  # noqa: PTH110
    may_be_used = os.access(folder, os.X_OK if folder == home else os.X_OK | os.W_OK)
    return home if may_be_used and folder.is_dir() else None


def key_of(name: str) -> str:
    """Return the key of a field: ``enabled_append_prop_crc`` is ``enabledAppendPropCRC``."""
    first, *rest = name.split("_")
    words = (
        word.upper() if word.upper() in _ACRONYMS else word[:1].upper() + word[1:] for word in rest
    )
    return first + "".join(words)


def texts(part: object) -> dict[str, str | None]:
    """Return a part's settings by key, in the form of a file; None if unset."""
    return {key: _text(getattr(part, name)) for key, (name, _) in _fields(type(part)).items()}


def _text(value: object) -> str | None:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def check_ranges(part: object) -> None:
    """Check each field that is annotated with a ``Range``; call it from ``__post_init__``.

    Raises:
        InvalidOption: A value is outside of its range, or not a number.
    """
    for key, (name, hint) in _fields(type(part)).items():
        limits = next(
            (
                metadata
                for metadata in getattr(hint, "__metadata__", ())
                if isinstance(metadata, Range)
            ),
            None,
        )
        value = getattr(part, name)
        if limits is None or (isinstance(value, int) and limits.least <= value <= limits.most):
            continue
        raise InvalidOption(key, value, f"a whole number from {limits.least} to {limits.most}")


# --- the syntax of java.util.Properties ------------------------------------


def read_properties(path: str | Path) -> dict[str, str]:
    """Return the pairs of a .properties file.

    It is read as Latin-1, as in Java: the same file must refer to the same folders. The mark that
    editors write before UTF-8, to Java a part of the first key, is left out.

    Raises:
        InvalidOption: As ``parse_properties``.
        OSError: The file cannot be read.
    """
    data = Path(path).read_bytes()
    return parse_properties(data.removeprefix(codecs.BOM_UTF8).decode("latin-1"))


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse a .properties file; the last of equal keys counts.

    Raises:
        InvalidOption: A ``\u`` is not followed by four hexadecimal digits.
    """
    pairs = {}
    for line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        assert match is not None
        pairs[_unescape(match[1], line)] = _unescape(match[2], line)
    return pairs


def property_line(key: str, value: str) -> str:
    r"""Return a line for this pair in the syntax of Java's Properties: ASCII, with ``\u``."""
    return f"{_escape(key, is_key=True)}={_escape(value)}\n"


def _escape(text: str, *, is_key: bool = False) -> str:
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    if is_key:
        text = _IN_KEYS.sub(r"\\\g<0>", text)
    elif text.startswith(" "):
        text = "\\" + text
    data = text.encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    return "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04x}" for unit in units)


def replace_properties(text: str, changes: Mapping[str, str | None]) -> str:
    """Return the text of a .properties file with new values of some keys; None removes a key.

    Everything else is unchanged, including comments; missing keys are added at the end.
    """
    left = {key: value for key, value in changes.items() if value is not None}
    parts = []
    lines = _LINE.findall(text)
    end = 0
    while end < len(lines):
        begin, end = end, end + 1
        # As in ``_logical_lines``: comments and blank lines have no continuation.
        if lines[begin].strip(_SPACE + "\r\n") and not lines[begin].lstrip(_SPACE).startswith(
            ("#", "!")
        ):
            while end < len(lines) and _is_continued(lines[end - 1]):
                end += 1
        raw = "".join(lines[begin:end])
        keys = list(parse_properties(raw))
        if keys and keys[0] in changes:
            value = changes[keys[0]]
            raw = "" if value is None else property_line(keys[0], value)
            left.pop(keys[0], None)
        parts.append(raw)
    if left and parts and not parts[-1].endswith(("\n", "\r")):
        parts.append("\n")
    if left and lines and _is_continued(lines[-1]):
        parts.append("\n\n")  # separates it from the last value; after \r two are needed
    return "".join(parts) + "".join(property_line(key, value) for key, value in left.items())


def _is_continued(line: str) -> bool:
    line = line.rstrip("\r\n")
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _logical_lines(text: str) -> typing.Iterator[str]:
    """Yield lines joined with their continuations, without comments and blank lines."""
    begun: list[str] = []  # joined at the end: there may be many continuations
    for part in _LINE_END.split(text):
        line = part.lstrip(_SPACE)
        if not begun and line.startswith(("#", "!")):
            continue
        # The collected text ends in an even number of backslashes, so only those of this part
        # count.
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if is_continued:
            line = line[:-1]
        if line:
            begun.append(line)
        if not is_continued and begun:
            yield "".join(begun)
            begun = []
    if begun:
        yield "".join(begun)


def _unescape(text: str, line: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise InvalidOption(line, text, "\\u followed by four hexadecimal digits")
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)

    # Java's escapes are UTF-16: two of them may be one character.
    code_units = _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass")
    return code_units.decode("utf-16-le", "surrogatepass")


# --- from text to values ----------------------------------------------------


def _of_source(source: Mapping[str, object] | str | Path | None) -> list[_GivenValue]:
    if source is None or isinstance(source, Mapping):
        return [_GivenValue(key, key, value, "settings") for key, value in (source or {}).items()]
    try:
        pairs = read_properties(source)
    except OSError as error:
        allowed = f"a readable file: {error.strerror}"
        raise InvalidOption("configuration file", str(source), allowed) from error
    return [_GivenValue(key, key, value, str(source)) for key, value in pairs.items()]


def _fields(part: type) -> dict[str, tuple[str, Any]]:
    """Return key -> (field, its type with ranges) of a dataclass."""
    hints = typing.get_type_hints(part, include_extras=True)
    return {
        key_of(dataclass_field.name): (dataclass_field.name, hints[dataclass_field.name])
        for dataclass_field in dataclasses.fields(part)
    }


def _check_only(given: _GivenValue, accepted: str, reason: str) -> None:
    if str(given.value).strip().lower() != accepted.lower():  # as in Java
        raise InvalidOption(given.name, given.value, f"{accepted}: {reason}")


def _convert(given: _GivenValue, hint: Any, *, is_renamed: bool) -> Any:
    """Convert a value to the type of its field. Raises ``InvalidOption``."""
    kind = _plain_type(hint)
    if type(given.value) is kind and kind is not str:
        return given.value
    text = str(given.value).strip()
    if kind is str:
        return text
    if kind is Secret:
        return Secret(text)
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind is int and is_renamed and _SHARE.fullmatch(text):
        return round(float(text) * 100)
    if kind is float and _DECIMAL.fullmatch(text):
        return float(text)
    if issubclass(kind, enum.Enum) and text in [str(member.value) for member in kind]:
        return kind(text)
    raise InvalidOption(given.name, given.value, _allowed(kind))


def _plain_type(hint: Any) -> type:
    """Return the type without its range and without None."""
    if hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if isinstance(hint, types.UnionType):
        (hint,) = (argument for argument in typing.get_args(hint) if argument is not types.NoneType)
    assert isinstance(hint, type)
    return hint


def _allowed(kind: type) -> str:
    if issubclass(kind, enum.Enum):
        return ", ".join(str(member.value) for member in kind)
    return {bool: "true or false", int: "a whole number", float: "a number"}[kind]
