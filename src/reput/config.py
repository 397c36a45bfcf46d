"""The one loader of settings: a part's frozen dataclass, filled from RocketMQ's own files.

    defaults < file < environment < explicit

A file is a broker.conf, in the syntax of Java's ``Properties``. Its camelCase keys become fields
mechanically: ``flushDiskType`` is ``flush_disk_type``, and ``REPUT_FLUSH_DISK_TYPE`` in the
environment. Java ignores a value that it cannot convert and a key that it does not know. Here the
first is an error, and the second is returned by name, for the caller to say so.

One file holds the settings of several parts: make each from the same ``Settings``, and ask for
``unknown`` at the end.
"""

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from reput.errors import InvalidOption, excerpt

ENVIRONMENT_PREFIX = "REPUT_"

JAVA_INT_MAX = (1 << 31) - 1
JAVA_LONG_MAX = (1 << 63) - 1

_ACRONYMS = ("CRC", "IP1")
"""Words that RocketMQ's keys have in capitals; with them, both directions are exact."""

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
"""A longer key looks like none that is known; comparing it would take long."""
_SUGGESTIONS_MAX = 10
"""For so many unknown keys one is looked for that looks like them: it takes milliseconds each."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be; the annotation of a field: ``Annotated[int, Range(1)]``."""

    least: int
    most: int = JAVA_INT_MAX


@dataclass(frozen=True, slots=True)
class Keys:
    """What a part does with keys that are no fields of it: its class variable ``keys``."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Other name -> key. A percentage may be given as a share below 1 under its other name."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Key -> why it means nothing here."""
    only: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Key -> the one value that is accepted, and why."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A key that no part knows."""

    key: str
    """As the user wrote it."""
    origin: str
    """The file, ``environment`` or ``explicit``."""
    suggestion: str | None
    """A key that looks like it."""

    def __str__(self) -> str:
        """Return a sentence for the log."""
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{self.origin}: unknown key {excerpt(self.key)!r}{hint}"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A part's settings, and what was set besides."""

    value: T
    unknown: tuple[Unknown, ...]
    without_effect: Mapping[str, str]
    """Keys that were set and mean nothing here -> why."""


@dataclass(frozen=True, slots=True)
class _Given:
    """One value, as the user gave it."""

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
    """Everything that was set, for all parts.

    Args:
        source: A .properties file, or what it would hold: camelCase key -> value.
        environment: ``os.environ``; only names that begin with ``REPUT_`` count.
        explicit: snake_case field -> value, text or of the field's type; wins over all.

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
        self._layers: list[list[_Given]] = [
            _of_source(source),
            [
                _Given(
                    name,
                    key_of(name.removeprefix(ENVIRONMENT_PREFIX).lower()),
                    value,
                    "environment",
                )
                for name, value in (environment or {}).items()
                if name.startswith(ENVIRONMENT_PREFIX)
            ],
            [
                _Given(name, key_of(name), value, "explicit")
                for name, value in (explicit or {}).items()
            ],
        ]

    def make(self, part: type[T]) -> T:
        """Return a part's settings: an instance of its dataclass.

        Raises:
            InvalidOption: A value is not allowed, or one setting was given under two names.
        """
        fields = _fields(part)
        keys: Keys = getattr(part, "keys", Keys())
        self._known |= {*fields, *keys.renamed, *keys.without_effect, *keys.only}
        values: dict[str, Any] = {}
        for layer in self._layers:
            in_layer: dict[str, str] = {}
            for given in layer:
                key = keys.renamed.get(given.key, given.key)
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
        return part(**values)

    def unknown(self) -> tuple[Unknown, ...]:
        """Return what no part that was made so far knows, in the order it was given."""
        found: list[Unknown] = []
        for given in (given for layer in self._layers for given in layer):
            if given.key not in self._known:
                may_be_alike = len(found) < _SUGGESTIONS_MAX and len(given.key) <= _KEY_LETTERS_MAX
                suggestion = self._suggestion(given.key) if may_be_alike else None
                found.append(Unknown(given.name, given.origin, suggestion))
        return tuple(found)

    def _suggestion(self, key: str) -> str | None:
        """Return a known key that looks like one; None if none does."""
        import difflib  # not at the top: every start would wait for it

        similar = {known.lower(): known for known in self._known}
        close = difflib.get_close_matches(key.lower(), similar, n=1, cutoff=0.8)
        return similar[close[0]] if close else None


def key_of(name: str) -> str:
    """Return the key of a field: ``enabled_append_prop_crc`` is ``enabledAppendPropCRC``."""
    first, *rest = name.split("_")
    words = (
        word.upper() if word.upper() in _ACRONYMS else word[:1].upper() + word[1:] for word in rest
    )
    return first + "".join(words)


def texts(part: object) -> dict[str, str | None]:
    """Return a part's settings by key, as a file has them; None: unset."""
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
        InvalidOption: A number is outside, or no number.
    """
    for key, (name, hint) in _fields(type(part)).items():
        limits = next(
            (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Range)), None
        )
        value = getattr(part, name)
        if limits is None or (isinstance(value, int) and limits.least <= value <= limits.most):
            continue
        raise InvalidOption(key, value, f"a whole number from {limits.least} to {limits.most}")


# --- the syntax of java.util.Properties ------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the pairs of a .properties file; of equal keys the last one counts.

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
    r"""Return a line that ``parse_properties`` and Java read as this pair: ASCII, with ``\u``."""
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


def replace_properties(text: str, changes: Mapping[str, str]) -> str:
    """Return the text of a .properties file in which some keys have other values.

    All else stays, comments too; keys that are not there yet are added at the end.
    """
    left = dict(changes)
    found = []
    lines = _LINE.findall(text)
    at = 0
    while at < len(lines):
        begin, at = at, at + 1
        # As ``_logical_lines``: comments and blank lines are not continued.
        if lines[begin].strip(_SPACE + "\r\n") and not lines[begin].lstrip(_SPACE).startswith(
            ("#", "!")
        ):
            while at < len(lines) and _is_continued(lines[at - 1]):
                at += 1
        raw = "".join(lines[begin:at])
        keys = list(parse_properties(raw))
        if keys and keys[0] in changes:
            raw = property_line(keys[0], changes[keys[0]])
            left.pop(keys[0], None)
        found.append(raw)
    if left and found and not found[-1].endswith(("\n", "\r")):
        found.append("\n")
    if left and lines and _is_continued(lines[-1]):
        found.append("\n\n")  # what is added is no part of the last value; after \r it takes two
    return "".join(found) + "".join(property_line(key, one) for key, one in left.items())


def _is_continued(line: str) -> bool:
    line = line.rstrip("\r\n")
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _logical_lines(text: str) -> typing.Iterator[str]:
    """Yield lines without comments and blank ones, each with those it is continued on."""
    begun: list[str] = []  # joined at the end: a line may be continued very often
    for part in _LINE_END.split(text):
        line = part.lstrip(_SPACE)
        if not begun and line.startswith(("#", "!")):
            continue
        # What was begun ends in an even number of backslashes, so those of the part alone count.
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
        what = match[1]
        if what == "u":
            raise InvalidOption(line, text, "\\u followed by four hexadecimal digits")
        return chr(int(what[1:], 16)) if len(what) > 1 else _ESCAPED.get(what, what)

    # Java's escapes are UTF-16: two of them may be one character.
    code_units = _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass")
    return code_units.decode("utf-16-le", "surrogatepass")


# --- from text to values ----------------------------------------------------


def _of_source(source: Mapping[str, object] | str | Path | None) -> list[_Given]:
    if source is None or isinstance(source, Mapping):
        return [_Given(key, key, value, "settings") for key, value in (source or {}).items()]
    try:
        # Latin-1, as Java reads it: the same file must name the same folders.
        text = Path(source).read_bytes().decode("latin-1")
    except OSError as error:
        raise InvalidOption(
            "configuration file", str(source), f"a readable file: {error}"
        ) from error
    return [_Given(key, key, value, str(source)) for key, value in parse_properties(text).items()]


def _fields(part: type) -> dict[str, tuple[str, Any]]:
    """Return key -> (field, its type with ranges) of a dataclass."""
    hints = typing.get_type_hints(part, include_extras=True)
    return {key_of(one.name): (one.name, hints[one.name]) for one in dataclasses.fields(part)}


def _check_only(given: _Given, accepted: str, reason: str) -> None:
    text = str(given.value).strip()
    text = text.lower() if accepted in ("true", "false") else text
    if text != accepted:
        raise InvalidOption(given.name, given.value, f"{accepted}: {reason}")


def _convert(given: _Given, hint: Any, *, is_renamed: bool) -> Any:
    """Return a value as the type of its field. Raises ``InvalidOption``."""
    kind = _plain_type(hint)
    if type(given.value) is kind and kind is not str:
        return given.value
    text = str(given.value).strip()
    if kind is str:
        return text
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind is int and is_renamed and _SHARE.fullmatch(text):
        return round(float(text) * 100)
    if kind is float and _DECIMAL.fullmatch(text):
        return float(text)
    if issubclass(kind, enum.Enum) and text in [str(one.value) for one in kind]:
        return kind(text)
    raise InvalidOption(given.name, given.value, _allowed(kind))


def _plain_type(hint: Any) -> type:
    """Return the type without its range and without None."""
    if hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    assert isinstance(hint, type)
    return hint


def _allowed(kind: type) -> str:
    if issubclass(kind, enum.Enum):
        return ", ".join(str(one.value) for one in kind)
    return {bool: "true or false", int: "a whole number", float: "a number"}[kind]
