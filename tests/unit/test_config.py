"""Settings: the file's syntax, names, types, precedence; and no setting is silently ignored."""

import difflib
import enum
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from reput import config
from reput.config import Keys, Range, Settings, load, parse_properties
from reput.errors import InvalidOption
from reput.namesrv.config import NamesrvConfig
from reput.store.config import StoreConfig


class Colour(enum.StrEnum):
    RED = "RED"
    DARK_BLUE = "DARK_BLUE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    keys: ClassVar[Keys] = Keys(
        renamed={"some.old.ratio": "diskRatio"},
        without_effect={"useLock": "there is no lock"},
        only={"storeType": ("default", "files only")},
    )

    queue_count: Annotated[int, Range(1, 100)] = 4
    disk_ratio: int = 75
    is_fast: bool = False
    rate: float = 0.5
    root_dir: str = "/store"
    log_dir: str | None = None
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        config.check_ranges(self)


@dataclass(frozen=True)
class OtherPart:
    listen_port: int = 10911


# --- the syntax; tests/interop/test_store_config.py compares with java.util.Properties ---


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1\nb : 2", {"a": "1", "b": "2"}),
        ("a 1\nb\t2", {"a": "1", "b": "2"}),
        ("a = = 1", {"a": "= 1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("# no\n ! no\n\n \t\na=#1", {"a": "#1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("# no \\\na=1", {"a": "1"}),
        ("a=1\\\n# yes", {"a": "1# yes"}),
        ("a=1\\", {"a": "1"}),
        (r"a\:b\ c\==\t1\z", {"a:b c=": "\t1z"}),
        (r"a=\u65e5\u672C", {"a": "日本"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=1 ", {"a": "1 "}),
        ("a=1\na=2", {"a": "2"}),
        ("", {}),
    ],
)
def test_properties(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u", r"\uXYZW=1", r"a=1\u00g0"])
def test_an_escape_without_its_digits_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="four hexadecimal digits"):
        parse_properties(text)


def test_a_file_is_read_as_latin_1_as_java_does(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes("rootDir=/d\u00e4ta\r\nqueueCount = 8 \r\n".encode("latin-1"))
    settings = load(Part, file)
    assert settings.value == Part(root_dir="/däta", queue_count=8)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"gone\.conf"):
        load(Part, tmp_path / "gone.conf")


# --- names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("flush_disk_type", "flushDiskType"),
        ("check_crc_on_recover", "checkCRCOnRecover"),
        ("enabled_append_prop_crc", "enabledAppendPropCRC"),
        ("enable_d_leger_commit_log", "enableDLegerCommitLog"),
        (
            "schedule_async_deliver_max_resend_num2_blocked",
            "scheduleAsyncDeliverMaxResendNum2Blocked",
        ),
        ("keys", "keys"),
    ],
)
def test_names_and_keys(name: str, key: str) -> None:
    assert config.key_of(name) == key


# --- values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("queueCount", "8", Part(queue_count=8)),
        ("queueCount", " +8 ", Part(queue_count=8)),
        ("isFast", "true", Part(is_fast=True)),
        ("isFast", "TRUE", Part(is_fast=True)),
        ("rate", "2", Part(rate=2.0)),
        ("rate", "0.25", Part(rate=0.25)),
        ("rootDir", " /x y ", Part(root_dir="/x y")),
        ("logDir", "/log", Part(log_dir="/log")),
        ("colour", "DARK_BLUE", Part(colour=Colour.DARK_BLUE)),
        ("some.old.ratio", "0.85", Part(disk_ratio=85)),
        ("some.old.ratio", "80", Part(disk_ratio=80)),
    ],
)
def test_values(key: str, text: str, expected: Part) -> None:
    assert load(Part, {key: text}).value == expected


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("queueCount", "many", "a whole number"),
        ("queueCount", "1.5", "a whole number"),
        ("queueCount", "", "a whole number"),
        ("queueCount", "0", "from 1 to 100"),
        ("queueCount", "101", "from 1 to 100"),
        ("diskRatio", "0.85", "a whole number"),
        ("isFast", "yes", "true or false"),
        ("rate", "nan", "a number"),
        ("colour", "red", "RED, DARK_BLUE"),
        ("storeType", "defaultRocksDB", "default: files only"),
    ],
)
def test_the_error_for_a_wrong_value_names_key_value_and_allowed_values(
    key: str, text: str, allowed: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        load(Part, {key: text})
    assert refused.value.name == key
    assert str(refused.value.value) == text
    assert allowed in refused.value.allowed


def test_typed_values_pass_and_are_checked() -> None:
    given = {"queue_count": 7, "is_fast": True, "colour": Colour.DARK_BLUE, "rate": 1.5}
    expected = Part(queue_count=7, is_fast=True, colour=Colour.DARK_BLUE, rate=1.5)
    assert load(Part, explicit=given).value == expected
    with pytest.raises(InvalidOption, match="queue_count"):
        load(Part, explicit={"queue_count": True})
    with pytest.raises(InvalidOption, match="queueCount"):
        Part(queue_count=0)


def test_a_part_in_the_form_of_its_file() -> None:
    part = Part(queue_count=7, is_fast=True, colour=Colour.DARK_BLUE)
    texts = config.texts(part)
    assert texts == {
        "queueCount": "7",
        "diskRatio": "75",
        "isFast": "true",
        "rate": "0.5",
        "rootDir": "/store",
        "logDir": None,
        "colour": "DARK_BLUE",
    }
    given = {key: text for key, text in texts.items() if text is not None}
    assert load(Part, given).value == part


# --- precedence ---------------------------------------------------------------


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("queueCount=1\ndiskRatio=1\nrootDir=/file\n")
    environment = {"REPUT_DISK_RATIO": "2", "REPUT_ROOT_DIR": "/environment", "ROOT_DIR": "/no"}
    settings = load(Part, file, environment=environment, explicit={"root_dir": "/explicit"})
    assert settings.value == Part(queue_count=1, disk_ratio=2, root_dir="/explicit")
    assert settings.unknown == ()


def test_one_setting_under_two_names_is_refused_in_one_place() -> None:
    with pytest.raises(InvalidOption, match=r"one of diskRatio and some\.old\.ratio"):
        load(Part, {"diskRatio": "80", "some.old.ratio": "0.8"})
    settings = load(Part, {"some.old.ratio": "0.8"}, explicit={"disk_ratio": 70})
    assert settings.value.disk_ratio == 70


# --- unknown keys -------------------------------------------------------------


def test_unknown_keys_are_returned_with_suggestions() -> None:
    settings = load(Part, {"queuecount": "8", "zebra": "1"}, environment={"REPUT_IS_FATS": "true"})
    assert settings.value == Part()
    assert [str(key) for key in settings.unknown] == [
        "settings: unknown key 'queuecount'; did you mean 'queueCount'?",
        "settings: unknown key 'zebra'",
        "environment: unknown key 'REPUT_IS_FATS'; did you mean 'isFast'?",
    ]


def test_keys_without_effect_are_returned_with_the_reason() -> None:
    settings = load(Part, {"useLock": "whatever"})
    assert settings.value == Part()
    assert settings.unknown == ()
    assert settings.without_effect == {"useLock": "there is no lock"}


def test_one_file_for_several_parts() -> None:
    settings = Settings({"queueCount": "8", "listenPort": "1", "listenport": "2"})
    assert settings.make(Part) == Part(queue_count=8)
    assert settings.make(OtherPart) == OtherPart(listen_port=1)
    assert [key.key for key in settings.unknown()] == ["listenport"]


# --- settings from clients ----------------------------------------------------


def quadratic_lines(text: str) -> list[str]:
    """Return the lines of a properties text as Java's ``LineReader`` does, in quadratic time."""
    lines: list[str] = []
    begun: str | None = None
    for part in re.split(r"\r\n|\r|\n", text):
        line = part.lstrip(" \t\f")
        if not begun and line.startswith(("#", "!")):
            begun = None
            continue
        line = (begun or "") + line
        begun = None
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1]
        elif line:
            lines.append(line)
    return [*lines, begun] if begun else lines


@given(st.text(st.sampled_from("a=# \\\\\\!\n\r\t"), max_size=40))
def test_line_continuations_are_those_of_java(text: str) -> None:
    assert list(config._logical_lines(text)) == quadratic_lines(text)


def test_a_line_with_many_continuations_takes_linear_time() -> None:
    """1 MB of such lines took five seconds."""

    def cpu_seconds(count: int) -> float:
        begun = time.process_time()
        assert len(parse_properties("a=" + "x\\\n" * count)["a"]) == count
        return time.process_time() - begun

    small = min(cpu_seconds(20_000) for _ in range(3))
    large = min(cpu_seconds(160_000) for _ in range(2))
    assert large < 24 * small + 0.01


def test_only_a_prefix_of_an_unknown_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing a key with the known ones takes milliseconds, or seconds if the key is long."""
    compared: list[str] = []
    matches = difflib.get_close_matches

    def counted(word: str, *arguments: Any, **options: Any) -> list[str]:
        compared.append(word)
        return matches(word, *arguments, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    text = "".join(f"queueCoun{i}=1\n" for i in range(1_000))
    settings = Settings({"diskRatioo": "1", "x" * 60_000: "1", **parse_properties(text)})
    settings.make(Part)
    unknown = settings.unknown()
    assert len(unknown) == 1_002
    assert unknown[0].suggestion == "diskRatio"
    assert len(compared) == 9
    assert len(str(unknown[1])) < 300


def test_an_error_quotes_only_the_beginning_of_a_long_value() -> None:
    for given_values in ({"queueCount": "x" * 60_000}, {"colour": "x" * 60_000}):
        with pytest.raises(InvalidOption, match="allowed:") as raised:
            load(Part, given_values)
        assert len(str(raised.value)) < 400
    with pytest.raises(InvalidOption, match="hexadecimal") as raised:
        parse_properties("a" * 60_000 + "=\\u12")
    assert len(str(raised.value)) < 600


# --- the home folder ----------------------------------------------------------------------------


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "new"))
    assert config.home_folder() == tmp_path / "new"
    (tmp_path / "file").touch()
    for useless in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("HOME", str(useless))
        assert config.home_folder() is None


def test_a_home_that_may_not_be_entered_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "of-root"
    closed.mkdir()
    monkeypatch.setenv("HOME", str(closed))
    # These tests may run as root, who may enter all.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != closed)
    assert config.home_folder() is None


def test_an_unknown_user_without_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert config.home_folder() is None
    with pytest.raises(InvalidOption, match=r"storePathRootDir.*home folder"):
        StoreConfig()
    assert NamesrvConfig().kv_config_path == str(Path.cwd() / "namesrv" / "kvConfig.json")
