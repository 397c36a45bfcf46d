"""The other views, compared with the manifests."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import index_entry
from reput.spark import views
from spark import reading

STORE = pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
OPENED = pytest.mark.parametrize(
    ("version", "name"),
    [store for store in golden.EACH_STORE if store in golden.OPENED],
)
VIEWS = sorted(views.FIELDS)

Row = dict[str, Any]


def read(store: Path, view: str, **options: Any) -> list[Row]:
    parsed = reading.parse(store, view=view, **options)
    columns = parsed.columns or list(views.fields(parsed))
    read_rows: list[Row] = []
    for part in views.partitions(parsed):
        sent = pickle.loads(pickle.dumps((parsed, part)))
        for batch in views.read(sent[0], columns, sent[1]):
            batch.validate(full=True)
            assert batch.schema.names == list(columns)
            read_rows += batch.to_pylist()
    return read_rows


@pytest.mark.parametrize("view", VIEWS)
def test_every_row_names_its_store(view: str) -> None:
    store = golden.unpack("4.9.7", "torn/crc-early")
    rows = read(store, view)
    assert rows
    assert {(row["broker"], row["store"]) for row in rows} == {(reading.BROKER, str(store))}
    assert list(rows[0]) == ["broker", "store", *views.FIELDS[view]]
    assert {row["broker"] for row in read(store, view, broker="other")} == {"other"}


# --- consumequeue -----------------------------------------------------------


def unit_of(unit: Any) -> tuple[Any, ...]:
    """Return a unit of a manifest: (physical offset, size, tags code, bit map)."""
    if isinstance(unit, dict):
        ext = unit.get("ext")
        place = unit["unit"][:2]
        if ext is None:
            return (*unit["unit"], None)
        bit_map = ext.get("bitMap")
        return (*place, ext["tagsCode"], bytes.fromhex(bit_map) if bit_map is not None else None)
    return (*unit, None)


@OPENED
def test_units_equal_those_that_java_lists(version: str, name: str) -> None:
    rows = read(golden.unpack(version, name), "consumequeue")
    names = ("topic", "queue_id", "queue_offset", "message_count")
    names += ("physical_offset", "size", "tags_code", "bit_map")
    units = [tuple(row[name] for name in names) for row in rows]
    expected = []
    log_min = golden.manifest(version, name)["minPhyOffset"]
    for queue in golden.manifest(version, name)["queues"]:
        key = queue["topic"], queue["queueId"]
        for number, unit in enumerate(queue.get("units", ()), queue["minOffset"]):
            if unit_of(unit)[0] >= log_min:  # 4.x continues after units without log
                expected.append((*key, number, 1, *unit_of(unit)))
        for unit in queue.get("batchUnits", ()):
            place = unit["commitLogOffset"], unit["size"], unit["tagsCode"], None
            expected.append((*key, unit["queueOffset"], unit["batchNum"], *place))
    assert sorted(units, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_crashed_store_lacks_undispatched_units(version: str) -> None:
    rows = read(golden.unpack(version, "unclean"), "consumequeue")
    places = [message["commitLogOffset"] for message in golden.messages(version, "unclean")]
    missing = set(places) - {row["physical_offset"] for row in rows}
    assert missing == {*golden.manifest(version, "unclean")["recordsNotInQueues"]}


def test_rows_do_not_depend_on_parts_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden.unpack("4.9.7", "clean")
    whole = read(store, "consumequeue"), read(store, "index")
    monkeypatch.setattr(views, "_PART_BYTES", 5000)
    for view, rows in zip(("consumequeue", "index"), whole, strict=True):
        assert len(views.partitions(reading.parse(store, view=view))) > 3
        assert read(store, view) == rows
    monkeypatch.setattr(views, "_ROWS_A_BATCH", 7)
    assert (read(store, "consumequeue"), read(store, "index")) == whole


# --- index ------------------------------------------------------------------


@OPENED
def test_entries_include_those_that_java_finds_by_key(version: str, name: str) -> None:
    rows = read(golden.unpack(version, name), "index")
    manifest = golden.manifest(version, name)
    counts = Counter(row["file"] for row in rows)
    # Java's count includes entry 0, which is never used.
    expected = {file["name"]: file["indexCount"] - 1 for file in manifest["index"]}
    assert counts == {name: count for name, count in expected.items() if count > 0}
    by_hash: dict[int, set[int]] = {}
    for row in rows:
        by_hash.setdefault(row["key_hash"], set()).add(row["physical_offset"])
    for query in manifest["queries"]:
        key_hash = index_entry.key_hash(index_entry.key_of(query["topic"], query["key"]))
        assert {*query["indexOffsets"]} <= by_hash.get(key_hash, set())
    for file in manifest["index"]:
        own = [row for row in rows if row["file"] == file["name"]]
        if own:
            assert [row["entry"] for row in own] == list(range(1, len(own) + 1))
            assert own[0]["physical_offset"] == file["beginPhyOffset"]
            assert own[-1]["physical_offset"] == file["endPhyOffset"]
            assert all(0 <= row["previous"] < row["entry"] for row in own)
            seconds = reading.time_of(file["endTimestamp"]) - own[-1]["store_timestamp"]
            assert 0 <= seconds.total_seconds() < 1 or len(own) == 1


# --- files ------------------------------------------------------------------


@STORE
def test_files_equal_those_of_the_folder(version: str, name: str) -> None:
    rows = read(golden.unpack(version, name), "files")
    manifest = golden.manifest(version, name)
    files = {f"{row['family']}/{row['file']}": (row["size"], row["modified"]) for row in rows}
    assert len(files) == len(rows)
    expected = {
        file["path"]: (file["size"], reading.time_of(file["mtimeMs"]))
        for file in manifest["files"]
        if file["path"].split("/")[0] in ("commitlog", "consumequeue", "index")
    }
    assert files == expected


@STORE
def test_log_files_have_offsets_and_times(version: str, name: str) -> None:
    rows = [
        row for row in read(golden.unpack(version, name), "files") if row["family"] == "commitlog"
    ]
    messages = golden.messages(version, name)
    for row in rows:
        start, stop = row["start_offset"], row["start_offset"] + row["size"]
        own = [message for message in messages if start <= message["commitLogOffset"] < stop]
        shown = (
            row["first_physical_offset"],
            row["last_physical_offset"],
            row["min_store_timestamp"],
            row["max_store_timestamp"],
        )
        if not own:
            assert shown == (None, None, None, None)
            continue
        first, last = own[0], own[-1]
        assert shown == (
            first["commitLogOffset"],
            last["commitLogOffset"],
            reading.time_of(first["storeTimestamp"]),
            reading.time_of(last["storeTimestamp"]),
        )
        assert row["wasted_bytes"] == stop - last["commitLogOffset"] - last["storeSize"]


def test_index_files_have_times() -> None:
    rows = [
        row for row in read(golden.unpack("4.9.7", "clean"), "files") if row["family"] == "index"
    ]
    expected = golden.manifest("4.9.7", "clean")["index"]
    assert [
        (row["file"], row["first_physical_offset"], row["last_physical_offset"]) for row in rows
    ] == [(entry["name"], entry["beginPhyOffset"], entry["endPhyOffset"]) for entry in expected]
    assert [(row["min_store_timestamp"], row["max_store_timestamp"]) for row in rows] == [
        (reading.time_of(entry["beginTimestamp"]), reading.time_of(entry["endTimestamp"]))
        for entry in expected
    ]


# --- gaps -------------------------------------------------------------------


@pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
def test_gaps_equal_the_damage(version: str, variant: str) -> None:
    store = golden.unpack(version, f"torn/{variant}")
    damage = [
        {
            "physical_offset": r["physical_offset"],
            "store_size": r["length"],
            "_corrupt_record": r["reason"],
        }
        for r in read(store, "gaps")
        if r["kind"] == "damage"
    ]
    assert reading.runs(damage) == reading.damaged(version, variant).runs


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_torn_tail_is_a_separate_kind_of_gap(version: str) -> None:
    (row,) = read(golden.unpack(version, "torn/torn-tail"), "gaps")
    last = golden.messages(version, "clean")[-1]
    assert (row["kind"], row["physical_offset"]) == ("torn", last["commitLogOffset"])
    (row,) = read(golden.unpack(version, "torn/garbage-tail"), "gaps")
    assert (row["kind"], row["physical_offset"]) == (
        "torn",
        last["commitLogOffset"] + last["storeSize"],
    )


@STORE
def test_whole_stores_have_no_gaps(version: str, name: str) -> None:
    assert read(golden.unpack(version, name), "gaps") == []


# --- tables -----------------------------------------------------------------


def bounds_of(manifest: dict[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return queue -> (first offset in the log, next offset) (known-bugs.md#minimum-offsets)."""
    bounds = {}
    for queue in manifest.get("queues") or ():
        places = [unit_of(unit)[0] for unit in queue.get("units", ())]
        gone = sum(place < manifest["minPhyOffset"] for place in places)
        bounds[queue["topic"], queue["queueId"]] = (queue["minOffset"] + gone, queue["maxOffset"])
    return bounds


@STORE
def test_consumer_offsets(version: str, name: str) -> None:
    rows = read(golden.unpack(version, name), "offsets")
    manifest = golden.manifest(version, name)
    offsets = {
        (f"{row['topic']}@{row['consumer_group']}", row["queue_id"]): row["consumer_offset"]
        for row in rows
    }
    expected = {
        (key, int(queue_id)): offset
        for key, queues in (manifest["consumerOffsets"] or {}).items()
        for queue_id, offset in queues.items()
    }
    assert offsets == expected
    bounds = bounds_of(manifest)
    for row in rows:
        assert row["lag"] == row["max_offset"] - row["consumer_offset"]
        if (row["topic"], row["queue_id"]) in bounds:
            low_high = row["min_offset"], row["max_offset"]
            assert low_high == bounds[row["topic"], row["queue_id"]]


@STORE
def test_topics(version: str, name: str) -> None:
    rows = {row["topic"]: row for row in read(golden.unpack(version, name), "topics")}
    manifest = golden.manifest(version, name)
    for topic, expected in manifest["topics"].items():
        row = rows[topic]
        assert (row["read_queue_count"], row["write_queue_count"], row["perm"]) == (
            expected["readQueueNums"],
            expected["writeQueueNums"],
            expected["perm"],
        )
        assert (row["is_ordered"], row["filter_type"]) == (
            expected["order"],
            expected["topicFilterType"],
        )
        assert dict(row["attributes"]) == (expected.get("attributes") or {})
    if manifest["opened"]:
        queues = manifest["queues"]
        assert {*rows} == {*manifest["topics"], *(queue["topic"] for queue in queues)}
        for topic, row in rows.items():
            own = [span for (name, _), span in bounds_of(manifest).items() if name == topic]
            with_files = sum(high > 0 for _, high in own)
            count = sum(high - low for low, high in own)
            assert (row["queue_count"], row["message_count"]) == (with_files, count), topic


@STORE
def test_checkpoint(version: str, name: str) -> None:
    rows = {row["name"]: row for row in read(golden.unpack(version, name), "checkpoint")}
    page = golden.manifest(version, name)["checkpoint"]
    names = {
        "physical_timestamp": "physicMsgTimestamp",
        "queue_timestamp": "logicsMsgTimestamp",
        "index_timestamp": "indexMsgTimestamp",
    }
    for shown, java in names.items():
        assert rows[shown]["value"] == page[java]
        assert rows[shown]["timestamp"] == reading.time_of(page[java])
    assert rows["confirmed_physical_offset"]["timestamp"] is None


def test_missing_and_damaged_checkpoints(tmp_path: Path) -> None:
    assert read(golden.unpack("4.9.7", "torn/no-checkpoint"), "checkpoint") == []
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    (store / "checkpoint").write_bytes(b"short")
    with pytest.raises(CorruptRecord, match="checkpoint"):
        read(store, "checkpoint")


# --- options ----------------------------------------------------------------


def test_topics_are_selected_like_for_messages() -> None:
    store = golden.unpack("4.9.7", "clean")
    for view in ("consumequeue", "offsets", "topics"):
        whole = read(store, view)
        for options, wanted in [
            ({"topic": "GoldenOne,GoldenFour"}, {"GoldenOne", "GoldenFour"}),
            ({"subscribePattern": "Golden(One|Four)"}, {"GoldenOne", "GoldenFour"}),
            ({"assign": {"GoldenOne": {"broker-a": [0]}}}, {"GoldenOne"}),
            ({"topic": "nobody"}, set()),
        ]:
            assert read(store, view, **options) == [row for row in whole if row["topic"] in wanted]


def test_columns_and_several_stores() -> None:
    stores = [golden.unpack(version, "ext") for version in golden.VERSIONS]
    rows = read(",".join(map(str, stores)), "index", columns="store,entry")  # type: ignore[arg-type]
    assert {tuple(row) for row in rows} == {("store", "entry")}
    counts = Counter(row["store"] for row in rows)
    assert counts == {str(store): len(read(store, "index")) for store in stores}
    pattern = str(stores[0]).replace("4.5.2", "*")
    assert len(read(pattern, "index")) == len(rows)  # type: ignore[arg-type]


def test_missing_stores_and_unusable_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        read(tmp_path, "files")
    with pytest.raises(InvalidOption, match="'view' is 'files'"):
        read(tmp_path, "files", key="a")


def test_an_empty_store(tmp_path: Path) -> None:
    store_builder.build(tmp_path / "store", [])
    (tmp_path / "store" / "commitlog").mkdir()
    for view in VIEWS:
        rows = read(tmp_path / "store", view)
        assert bool(rows) == (view == "checkpoint")
