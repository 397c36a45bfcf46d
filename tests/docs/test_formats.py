"""The tables, examples and names in docs/formats equal those of the code and of real stores."""

import dataclasses
import fnmatch
import inspect
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import foreign_stores
import golden
from reput.format import (
    batch,
    checkpoint_page,
    cq_unit,
    dledger_entry,
    index_entry,
    message as record,
    message_id,
    properties as props,
    sys_flag as flags,
)

ROOT = Path(__file__).parents[2]
PAGES = {
    page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs/formats").glob("*.md")
}
LAYOUT_PAGES = {"commit-log", "consume-queue", "index-file", "checkpoint", "dledger"}

TYPES = {"b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "q": "int64"}
CODES = {name: code for code, name in TYPES.items()}


class Field(NamedTuple):
    """A row of a field table, in the document's words; ``position`` is None if it varies."""

    name: str
    position: int | None
    bytes: str
    type: str


# --- reading the documents ------------------------------------------------


def section(page: str, heading: str) -> str:
    """Return the text below a second-level heading, up to the next one."""
    heading_match = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert heading_match, f"no heading: {heading}"
    return heading_match[1]


def table(text: str, columns: str) -> list[list[str]]:
    """Yield the cells of the first table with these columns."""
    head = re.escape(f"| {columns} |")
    match = re.search(rf"^{head}\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert match, f"no table: {columns}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines()]


def field_table(page: str, heading: str) -> list[Field]:
    """Return the field table below a heading."""
    rows = table(section(page, heading), "# | field | at | bytes | type | meaning")
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    return [Field(row[1], int(row[2]) if row[2] else None, row[3], row[4]) for row in rows]


def blocks(page: str, kind: str) -> list[tuple[list[str], list[str]]]:
    """Return the words after the kind, and the lines, of each fenced block of a kind."""
    code_blocks = re.findall(rf"^```{kind} ([^\n]*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [(words.split(), text.splitlines()) for words, text in code_blocks]


def hex_line(line: str) -> tuple[bytes, str]:
    """Return the bytes of a line of an example, and their description."""
    digits, _, text = line.partition("   ")
    return bytes.fromhex(digits), text.strip()


# --- reading the code -----------------------------------------------------


def comments(module: ModuleType, name: str) -> list[str]:
    """Return the first word of the comment at the end of each field of a struct.

    Each field must have a separate line, so that the format and its words cannot drift apart.
    """
    source = inspect.getsource(module)
    match = re.search(rf"^{name} = struct\.Struct\(\n(.*?)^\)", source, re.MULTILINE | re.DOTALL)
    assert match, f"no struct {name} in {module.__name__}"
    lines = [re.fullmatch(r'    "(.)"(?:  # (\w+).*)?', line) for line in match[1].splitlines()]
    assert all(lines), f"{name}: one field and its comment a line"
    codes = "".join(line[1] for line in lines if line)
    assert codes == getattr(module, name).format
    return [line[2] for line in lines if line and line[2]]


def fields(names: Sequence[str], layout: struct.Struct, position: int | None = 0) -> list[Field]:
    """Return the rows that the table must have for a struct."""
    codes = layout.format.lstrip(">")
    assert layout.format[0] == ">"
    assert len(names) == len(codes)
    rows = []
    for name, code in zip(names, codes, strict=True):
        size = struct.calcsize(">" + code)
        rows.append(Field(name, position, str(size), TYPES[code]))
        position = None if position is None else position + size
    return rows


def names_of(value_class: Any) -> list[str]:
    """Return the field names of a dataclass, in order."""
    return [field.name for field in dataclasses.fields(value_class)]


def record_fields() -> list[Field]:
    """Return the fields of a record, combined from the structs as the codec does."""
    v4, v6 = record.HOST_V4_BYTES, record.HOST_V6_BYTES
    head = fields(comments(record, "HEAD"), record.HEAD)
    born_host = record.POSITION_BORN_HOST
    store_timestamp = born_host + v4
    store_host = store_timestamp + record.STORE_TIMESTAMP.size
    tail_at = store_host + v4
    tail = fields(comments(record, "TAIL"), record.TAIL, tail_at)
    widths = (record.TOPIC_LENGTH_V1, record.TOPIC_LENGTH_V2)
    topic_length = Field(
        "TOPICLEN",
        None,
        " or ".join(str(layout.size) for layout in widths),
        " or ".join(TYPES[layout.format[1]] for layout in widths),
    )
    return [
        *head,
        Field("BORNHOST", born_host, f"{v4} or {v6}", "host"),
        *fields(["STORETIMESTAMP"], record.STORE_TIMESTAMP, store_timestamp),
        Field("STOREHOST", store_host, f"{v4} or {v6}", "host"),
        *tail,
        Field("body", tail_at + record.TAIL.size, "BODYLEN", "bytes"),
        topic_length,
        Field("topic", None, "TOPICLEN", "text"),
        *fields(["PROPSLEN"], record.PROPERTIES_LENGTH, None),
        Field("properties", None, "PROPSLEN", "text"),
    ]


def inner_batch_fields() -> list[Field]:
    return [
        *fields(comments(batch, "HEAD"), batch.HEAD),
        Field("body", batch.HEAD.size, "bodyLen", "bytes"),
        *fields(["propsLen"], batch.PROPERTIES_LENGTH, None),
        Field("properties", None, "propsLen", "text"),
    ]


def ext_fields() -> list[Field]:
    *fixed, bit_map = names_of(cq_unit.ExtUnit)
    return [
        *fields([*fixed, "bit_map_bytes"], cq_unit.EXT_HEAD),
        Field(bit_map, cq_unit.EXT_HEAD.size, "bit_map_bytes", "bytes"),
    ]


LAYOUTS = {
    ("commit-log", "Record"): record_fields,
    ("commit-log", "Blank"): lambda: fields(["size", "MAGIC"], record.BLANK),
    ("commit-log", "Inner batch"): inner_batch_fields,
    ("consume-queue", "Unit"): lambda: fields(names_of(cq_unit.Unit), cq_unit.UNIT),
    ("consume-queue", "Extension unit"): ext_fields,
    ("consume-queue", "Batch unit"): lambda: fields(
        [*names_of(cq_unit.BatchUnit), "reserved"], cq_unit.BATCH_UNIT
    ),
    ("index-file", "Header"): lambda: fields(names_of(index_entry.Header), index_entry.HEADER),
    ("index-file", "Slot"): lambda: fields(["entry"], index_entry.SLOT),
    ("index-file", "Entry"): lambda: fields(names_of(index_entry.Entry), index_entry.ENTRY),
    ("checkpoint", "Page"): lambda: fields(comments(checkpoint_page, "PAGE"), checkpoint_page.PAGE),
    ("dledger", "Entry"): lambda: fields(comments(dledger_entry, "HEADER"), dledger_entry.HEADER),
    ("dledger", "Blank"): lambda: fields(comments(dledger_entry, "BLANK"), dledger_entry.BLANK),
    ("dledger", "Index unit"): lambda: fields(
        comments(dledger_entry, "INDEX_UNIT"), dledger_entry.INDEX_UNIT
    ),
}

ON_LAYOUTS = pytest.mark.parametrize(("page", "heading"), LAYOUTS)

PARTS = {
    "SIZE_AND_MAGIC",
    "PHYSICAL_OFFSET",
    "PORT",
    "EXT_END",
    "SYS_FLAG",
    "_CHECKED",
    "_QUEUE_AND_FLAG",
}
"""Structs that read a part of a layout whose own struct is compared."""


# --- tables and structs ---------------------------------------------------


@ON_LAYOUTS
def test_the_field_table_equals_the_struct(page: str, heading: str) -> None:
    assert field_table(PAGES[page], heading) == LAYOUTS[page, heading]()


def test_every_field_table_is_compared() -> None:
    documented = {
        (name, heading)
        for name, page in PAGES.items()
        for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)
        if "| # | field | at |" in section(page, heading)
    }
    assert documented == set(LAYOUTS)


@ON_LAYOUTS
def test_a_change_of_only_the_document_is_detected(page: str, heading: str) -> None:
    code = LAYOUTS[page, heading]()
    head = "| # | field | at | bytes | type | meaning |"
    text = section(PAGES[page], heading)
    for row in text[text.index(head) :].splitlines()[2 : 2 + len(code)]:
        cells = row.split("|")
        for column in (2, 3, 4, 5):
            other = " 7 " if cells[column].strip() != "7" else " 8 "
            changed = "|".join([*cells[:column], other, *cells[column + 1 :]])
            assert field_table(PAGES[page].replace(row, changed), heading) != code


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module, name)
        for module in (record, batch, cq_unit, index_entry, checkpoint_page, dledger_entry)
        for name, value in vars(module).items()
        if isinstance(value, struct.Struct) and name not in PARTS
    ],
)
def test_a_change_of_only_a_struct_is_detected(
    module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_seen() -> bool:
        try:
            return any(
                field_table(PAGES[page], heading) != layout()
                for (page, heading), layout in LAYOUTS.items()
            )
        except AssertionError:
            return True

    layout = getattr(module, name)
    assert not is_seen()
    for i in range(1, len(layout.format)):
        other = "b" if layout.format[i] != "b" else "i"
        changed = struct.Struct(layout.format[:i] + other + layout.format[i + 1 :])
        monkeypatch.setattr(module, name, changed)
        assert is_seen()


def test_record_names_equal_those_of_the_module() -> None:
    """The picture at the head of ``message.py`` shows the same fields in the same order."""
    picture = (record.__doc__ or "").split("\n\n")[1]
    assert picture.replace("|", " ").split() == [
        field.name for field in field_table(PAGES["commit-log"], "Record")
    ]


def test_fixed_positions_of_the_record() -> None:
    places = {
        field.name: field.position
        for field in field_table(PAGES["commit-log"], "Record")
        if field.position is not None
    }
    positions = {
        name.removeprefix("POSITION_").replace("_", ""): value
        for name, value in vars(record).items()
        if name.startswith("POSITION_")
    }
    assert positions
    assert positions.items() <= places.items()


def test_sizes_in_the_text() -> None:
    pages = {name: " ".join(page.split()) for name, page in PAGES.items()}
    assert (
        f"is {record.FIXED_BYTES_V1} bytes plus body, topic and properties" in pages["commit-log"]
    )
    extra = record.HOST_V6_BYTES - record.HOST_V4_BYTES
    assert f"later fields by {extra} bytes" in pages["commit-log"]
    assert f"At most {props.LENGTH_MAX} bytes" in pages["properties"]
    assert f"/ {cq_unit.SIZE} " in pages["consume-queue"]
    assert f"if it is {cq_unit.EXT_ADDRESS_MAX} or less" in pages["consume-queue"]
    assert f"size {cq_unit.PRE_BLANK_SIZE}, tags code 0" in pages["consume-queue"]
    assert f"{index_entry.HEADER.size} + 4 * slots + 20 * entries" in pages["index-file"]
    assert index_entry.entry_position(23, 100) == 440 + 20 * 23
    assert index_entry.slot_position(25) == 40 + 4 * 25
    assert f"one page of {checkpoint_page.SIZE} bytes" in pages["checkpoint"]
    assert f"less {checkpoint_page.SLACK_MS} ms" in pages["checkpoint"]
    assert f"the last {record.CRC_PROPERTY_BYTES} bytes" in pages["commit-log"]


def test_magics() -> None:
    page = PAGES["commit-log"]
    for magic, text in (
        (record.MAGIC_V1, "`0x{:08X}` is V1"),
        (record.MAGIC_V2, "`0x{:08X}` is V2"),
        (record.MAGIC_BLANK, "| int32 | `0x{:08X}` |"),
    ):
        assert text.format(magic & 0xFFFFFFFF) in page


def test_verdicts() -> None:
    rows = table(section(PAGES["commit-log"], "Invariants"), "value | verdict | meaning")
    assert [(int(row[0]), row[1]) for row in rows] == [(v.value, v.name) for v in record.Verdict]


def test_sys_flags() -> None:
    rows = table(section(PAGES["commit-log"], "Record"), "bits | name | meaning")
    known = {name: value for name, value in vars(flags).items() if name.isupper()}
    named = {name: int(bits.strip("`"), 16) for bits, name, _ in rows}
    assert named.items() <= known.items()
    mentioned = {int(bits, 16) for row in rows for bits in re.findall(r"`(0x\w+)`", " ".join(row))}
    assert set(known.values()) <= mentioned


def test_property_names() -> None:
    rows = table(section(PAGES["properties"], "Names"), "name | meaning")
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    separators = {"NAME_VALUE_SEPARATOR", "PROPERTY_SEPARATOR", "KEY_SEPARATOR", "LMQ_SEPARATOR"}
    assert listed == {
        value
        for name, value in vars(props).items()
        if name.isupper() and isinstance(value, str) and name not in separators
    }
    fields_of_a_pair = table(PAGES["properties"], "# | field | bytes | type | meaning")
    for _, name, size, text, _ in fields_of_a_pair:
        if name in separators:
            assert (size, text) == ("1", f"`0x{ord(getattr(props, name)):02x}`")


def test_offset_id_fields() -> None:
    rows = table(section(PAGES["message-ids"], "Offset id"), "# | field | bytes | type | meaning")
    assert [(row[1], row[2]) for row in rows] == [
        ("address", "4 or 16"),
        ("port", "4"),
        ("physical_offset", "8"),
    ]
    rest = sum(int(row[2]) for row in rows[1:])
    assert tuple(2 * (width + rest) for width in (4, 16)) == message_id.OFFSET_ID_LENGTHS
    unique = table(
        section(PAGES["message-ids"], "Unique key"), "# | field | bytes | type | meaning"
    )
    rest = sum(int(row[2]) for row in unique[1:])
    assert tuple(2 * (width + rest) for width in (4, 16)) == message_id.OFFSET_ID_LENGTHS


# --- values of fields ---------------------------------------------------------


def read(data: bytes, field: Field) -> int:
    """Return the number at the position in the table."""
    assert field.position is not None
    (value,) = struct.unpack_from(">" + CODES[field.type], data, field.position)
    return int(value)


PACKED: dict[tuple[str, str], tuple[Any, Any]] = {
    ("consume-queue", "Unit"): (cq_unit.Unit, cq_unit.pack),
    ("consume-queue", "Batch unit"): (cq_unit.BatchUnit, cq_unit.pack_batch),
    ("index-file", "Header"): (index_entry.Header, index_entry.pack_header),
    ("index-file", "Entry"): (index_entry.Entry, index_entry.pack_entry),
    ("checkpoint", "Page"): (checkpoint_page.Checkpoint, checkpoint_page.pack),
}


@pytest.mark.parametrize(("page", "heading"), PACKED)
def test_values_are_at_the_positions_in_the_table(page: str, heading: str) -> None:
    value_class, pack = PACKED[page, heading]
    numbers = list(range(101, 101 + len(names_of(value_class))))
    data = pack(value_class(*numbers))
    rows = field_table(PAGES[page], heading)
    assert [read(data, row) for row in rows[: len(numbers)]] == numbers


def test_ext_values_are_at_the_positions_in_the_table() -> None:
    data = cq_unit.pack_ext(cq_unit.ExtUnit(23, 102, 103, b"abc"))
    *rows, bit_map = field_table(PAGES["consume-queue"], "Extension unit")
    assert [read(data, row) for row in rows] == [23, 102, 103, 3]
    assert data[bit_map.position :] == b"abc"


def test_record_values_are_at_the_positions_in_the_table() -> None:
    message = record.StoredMessage(
        topic="T",
        body=b"hello",
        queue_id=104,
        queue_offset=106,
        physical_offset=107,
        born_timestamp=109,
        born_host=record.Host(bytes(4), 110),
        store_timestamp=111,
        store_host=record.Host(bytes(4), 112),
        flag=105,
        sys_flag=flags.MULTI_TAGS,
        reconsume_times=113,
        prepared_transaction_offset=114,
        body_crc=103,
    )
    data = record.encode(message)
    rows = {row.name: row for row in field_table(PAGES["commit-log"], "Record")}
    assert {
        row.name: read(data, row)
        for row in rows.values()
        if row.type in CODES and row.position is not None
    } == {
        "TOTALSIZE": len(data),
        "MAGIC": record.MAGIC_V1,
        "BODYCRC": 103,
        "QUEUEID": 104,
        "FLAG": 105,
        "QUEUEOFFSET": 106,
        "PHYSICALOFFSET": 107,
        "SYSFLAG": flags.MULTI_TAGS,
        "BORNTIMESTAMP": 109,
        "STORETIMESTAMP": 111,
        "RECONSUMETIMES": 113,
        "PREPAREDTRANSACTIONOFFSET": 114,
        "BODYLEN": 5,
    }
    for name, port in (("BORNHOST", 110), ("STOREHOST", 112)):
        position = rows[name].position
        assert position is not None
        assert data[position : position + 8] == bytes(4) + port.to_bytes(4, "big")
    body_position = rows["body"].position
    assert body_position is not None
    assert data[body_position:] == b"hello" + b"\x01T" + b"\x00\x00"


# --- examples -------------------------------------------------------------

EXAMPLES = [
    pytest.param(name, words, lines, id=f"{name}-{words[2]}@{words[3]}")
    for name, page in sorted(PAGES.items())
    for words, lines in blocks(page, "hex")
]


@pytest.mark.parametrize(("page", "words", "lines"), EXAMPLES)
def test_example_is_in_the_store(page: str, words: list[str], lines: list[str]) -> None:
    version, name, file, position = words
    data = b"".join(hex_line(line)[0] for line in lines)
    if page == "dledger":
        stored = foreign_stores.file(version, name, file)
    else:
        stored = golden.files(version, name)[file]
    assert stored[int(position) :].startswith(data)


@pytest.mark.parametrize(("page", "words", "lines"), EXAMPLES)
def test_example_names_its_numbers(page: str, words: list[str], lines: list[str]) -> None:
    for line in lines:
        data, text = hex_line(line)
        number = re.fullmatch(r"\w+ (-?\d+)", text)
        if number:
            assert int.from_bytes(data, "big", signed=True) == int(number[1])
        else:
            assert "," in text, "a name and its number, or a name, a comma and words"


@pytest.mark.parametrize(("page", "words", "lines"), EXAMPLES)
def test_example_follows_its_table(page: str, words: list[str], lines: list[str]) -> None:
    names = [re.split(r"[ ,]", hex_line(line)[1])[0] for line in lines]
    if page == "properties":
        data = b"".join(hex_line(line)[0] for line in lines)
        assert list(props.decode(data)) == names
        return
    tables = [
        [field.name for field in field_table(PAGES[page], heading)]
        for known_page, heading in LAYOUTS
        if known_page == page
    ]
    assert names in tables


def test_every_layout_has_an_example() -> None:
    shown = {
        (page, tuple(re.split(r"[ ,]", hex_line(line)[1])[0] for line in lines))
        for page, _, lines in (example.values for example in EXAMPLES)
    }
    for page, heading in LAYOUTS:
        names = tuple(field.name for field in field_table(PAGES[page], heading))
        assert (page, names) in shown


def test_the_example_of_the_index_is_a_lookup() -> None:
    key = index_entry.key_of("GoldenOne", "k35")
    assert f"hash of `{key}` is -273919225" in " ".join(PAGES["index-file"].split())
    assert index_entry.key_hash(key) == 273919225
    assert index_entry.key_hash(key) % 100 == 25


def test_the_examples_of_ids() -> None:
    page = PAGES["message-ids"]
    (offset,) = (text for words, text in blocks(page, "id") if words == ["offset"])
    (unique,) = (text for words, text in blocks(page, "id") if words == ["unique"])
    (message,) = (
        shown for shown in golden.messages("4.9.7", "clean") if shown["commitLogOffset"] == 105739
    )
    for lines, whole in ((offset, message["offsetMsgId"]), (unique, message["uniqKey"])):
        assert "".join(line.split()[0] for line in lines) == whole
        for line in lines:
            number = re.fullmatch(r"([0-9A-F]+) +\w+ (\d+)", line)
            if number:
                assert int(number[1], 16) == int(number[2])


def test_the_example_of_a_folder() -> None:
    ((words, lines),) = blocks(PAGES["store-folder"], "tree")
    assert lines == sorted(lines)
    assert set(lines) <= golden.files(*words).keys()


# --- the folder -----------------------------------------------------------


def folder_patterns() -> list[str]:
    rows = table(PAGES["store-folder"], "path | bytes | since | what")
    paths = [row[0].strip("`") for row in rows]
    digits = "[0-9]"
    words = {"N": digits * 20, "T": digits * 17, "TOPIC": "*", "QUEUE": digits, "FILE": "*"}
    return ["/".join(words.get(word, word) for word in path.split("/")) for path in paths]


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern by segment; a queue has at most two digits here."""
    words, wanted = path.split("/"), pattern.split("/")
    if len(words) != len(wanted):
        return False
    return all(
        fnmatch.fnmatchcase(word, segment) or (segment == "[0-9]" and word.isdigit())
        for word, segment in zip(words, wanted, strict=True)
    )


@pytest.mark.parametrize(("version", "name"), golden.STORES)
def test_every_file_of_a_store_is_explained(version: str, name: str) -> None:
    patterns = folder_patterns()
    for file in golden.manifest(version, name)["files"]:
        path = file["path"]
        if path.startswith(("config/", "compaction/")):
            path = path.removesuffix(".bak")
        assert any(matches(path, pattern) for pattern in patterns), path


def test_every_line_of_the_folder_is_in_some_store() -> None:
    paths = {
        file["path"]
        for version, name in golden.STORES
        for file in golden.manifest(version, name)["files"]
    }
    unseen = [
        pattern for pattern in folder_patterns() if not any(matches(p, pattern) for p in paths)
    ]
    assert unseen == []


# --- the pages as pages ---------------------------------------------------


@pytest.mark.parametrize("page", sorted(PAGES))
def test_page_has_every_part(page: str) -> None:
    headings = re.findall(r"^## (.*)$", PAGES[page], re.MULTILINE)
    wanted = {"Invariants", "Example", "Versions", "Benefits", "Downsides"}
    assert wanted <= set(headings)
    assert headings[-2:] == ["Benefits", "Downsides"]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_and_paths_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGES[page]):
        assert (ROOT / "docs/formats" / target).exists(), target
    (code,) = re.findall(r"^Code: (.*)$", PAGES[page], re.MULTILINE)
    first, *more = re.findall(r"`([^`]+\.py)`", code)
    for path in (first, *more):
        file = ROOT / path if "/" in path else (ROOT / first).parent / path
        assert file.exists(), path


def test_modules_name_their_page() -> None:
    for module in (record, batch, cq_unit, index_entry, checkpoint_page, dledger_entry):
        (target,) = re.findall(r"docs/formats/([\w-]+)\.md", module.__doc__ or "")
        assert target in LAYOUT_PAGES
        assert Path(inspect.getsourcefile(module) or "").name in PAGES[target]
