"""The other views, compared with the manifests."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import index_entry
from reput.spark import views
from spark import reading
from spark.reading import Row

VIEWS = sorted(views.FIELDS)

Manifest = dict[str, Any]


def read(store: Path, view: str, **options: Any) -> list[Row]:
    return reading.read_view(path=store, view=view, **options)


@pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
def test_views_equal_the_manifest(version: str, name: str) -> None:
    store, manifest = golden.unpack(version, name), golden.manifest(version, name)
    check_files(read(store, "files"), manifest, golden.messages(version, name))
    assert read(store, "gaps") == []
    bounds = bounds_of(manifest)
    check_offsets(read(store, "offsets"), manifest, bounds)
    check_topics({row["topic"]: row for row in read(store, "topics")}, manifest, bounds)
    check_checkpoint({row["name"]: row for row in read(store, "checkpoint")}, manifest)
    if (version, name) in golden.OPENED:
        check_units(read(store, "consumequeue"), manifest)
        check_index(read(store, "index"), manifest)


def test_every_row_names_its_store(tmp_path: Path) -> None:
    store = golden.unpack("4.9.7", "torn/crc-early")
    store_builder.build(tmp_path / "empty", [])
    (tmp_path / "empty" / "commitlog").mkdir()
    for view in VIEWS:
        rows = read(store, view)
        assert {(row["broker"], row["store"]) for row in rows} == {(reading.BROKER, str(store))}
        assert list(rows[0]) == ["broker", "store", *views.FIELDS[view]]
        assert {row["broker"] for row in read(store, view, broker="other")} == {"other"}
        assert bool(read(tmp_path / "empty", view)) == (view == "checkpoint")
    stores = [str(golden.unpack(version, "ext")) for version in golden.VERSIONS]
    counts = {where: len(read(Path(where), "index")) for where in stores}
    for path in (",".join(stores), stores[0].replace("4.5.2", "*")):
        rows = reading.read_view(path=path, view="index", columns="store,entry")
        assert Counter(row["store"] for row in rows) == counts


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    assert read(golden.unpack("4.9.7", "torn/no-checkpoint"), "checkpoint") == []
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    (store / "checkpoint").write_bytes(b"short")
    with pytest.raises(CorruptRecord, match="checkpoint"):
        read(store, "checkpoint")
    with pytest.raises(StoreUnavailable):
        read(tmp_path, "files")


def unit_of(unit: Any) -> tuple[Any, ...]:
    """Return a unit of a manifest: (physical offset, size, tags code, bit map)."""
    if not isinstance(unit, dict):
        return (*unit, None)
    ext = unit.get("ext")
    if ext is None:
        return (*unit["unit"], None)
    bit_map = ext.get("bitMap")
    bits = bytes.fromhex(bit_map) if bit_map is not None else None
    return (*unit["unit"][:2], ext["tagsCode"], bits)


def check_units(rows: list[Row], manifest: Manifest) -> None:
    names = ("topic", "queue_id", "queue_offset", "message_count")
    names += ("physical_offset", "size", "tags_code", "bit_map")
    expected = []
    for queue in manifest["queues"]:
        key = queue["topic"], queue["queueId"]
        for number, unit in enumerate(queue.get("units", ()), queue["minOffset"]):
            if (
                unit_of(unit)[0] >= manifest["minPhyOffset"]
            ):  # 4.x continues after units without log
                expected.append((*key, number, 1, *unit_of(unit)))
        for unit in queue.get("batchUnits", ()):
            place = unit["commitLogOffset"], unit["size"], unit["tagsCode"], None
            expected.append((*key, unit["queueOffset"], unit["batchNum"], *place))
    units = [tuple(row[name] for name in names) for row in rows]
    assert sorted(units, key=str) == sorted(expected, key=str)


def check_index(rows: list[Row], manifest: Manifest) -> None:
    by_hash: dict[int, set[int]] = {}
    for row in rows:
        by_hash.setdefault(row["key_hash"], set()).add(row["physical_offset"])
    for query in manifest["queries"]:
        key_hash = index_entry.key_hash(index_entry.key_of(query["topic"], query["key"]))
        assert {*query["indexOffsets"]} <= by_hash.get(key_hash, set())
    for file in manifest["index"]:
        own = [row for row in rows if row["file"] == file["name"]]
        # Java's count includes entry 0, which is never used.
        assert [row["entry"] for row in own] == list(range(1, max(file["indexCount"], 1)))
        if own:
            assert own[0]["physical_offset"] == file["beginPhyOffset"]
            assert own[-1]["physical_offset"] == file["endPhyOffset"]
            assert all(0 <= row["previous"] < row["entry"] for row in own)
            seconds = reading.time_of(file["endTimestamp"]) - own[-1]["store_timestamp"]
            assert 0 <= seconds.total_seconds() < 1 or len(own) == 1


def check_files(rows: list[Row], manifest: Manifest, messages: list[dict[str, Any]]) -> None:
    files = {f"{row['family']}/{row['file']}": (row["size"], row["modified"]) for row in rows}
    assert len(files) == len(rows)
    assert files == {
        file["path"]: (file["size"], reading.time_of(file["mtimeMs"]))
        for file in manifest["files"]
        if file["path"].split("/")[0] in ("commitlog", "consumequeue", "index")
    }
    names = "first_physical_offset", "last_physical_offset"
    times = "min_store_timestamp", "max_store_timestamp"
    indexed = {file["name"]: file for file in manifest.get("index") or ()}
    for row in rows:
        shown = [row[name] for name in (*names, *times)]
        if row["family"] == "index" and row["file"] in indexed and row["size"]:
            file = indexed[row["file"]]
            assert shown == [
                *(file[name] for name in ("beginPhyOffset", "endPhyOffset")),
                *(reading.time_of(file[name]) for name in ("beginTimestamp", "endTimestamp")),
            ]
        if row["family"] == "commitlog":
            start, stop = row["start_offset"], row["start_offset"] + row["size"]
            own = [message for message in messages if start <= message["commitLogOffset"] < stop]
            ends = [own[0], own[-1]] if own else []
            assert [value for value in shown if value is not None] == [
                *(message["commitLogOffset"] for message in ends),
                *(reading.time_of(message["storeTimestamp"]) for message in ends),
            ]
            if own:
                used = own[-1]["commitLogOffset"] + own[-1]["storeSize"]
                assert row["wasted_bytes"] == stop - used


Bounds = dict[tuple[str, int], tuple[int, int]]


def bounds_of(manifest: Manifest) -> Bounds:
    """Return queue -> (first offset in the log, next offset) (known-bugs.md#minimum-offsets)."""
    bounds = {}
    for queue in manifest.get("queues") or ():
        places = [unit_of(unit)[0] for unit in queue.get("units", ())]
        gone = sum(place < manifest["minPhyOffset"] for place in places)
        bounds[queue["topic"], queue["queueId"]] = (queue["minOffset"] + gone, queue["maxOffset"])
    return bounds


def check_offsets(rows: list[Row], manifest: Manifest, bounds: Bounds) -> None:
    assert {
        (f"{row['topic']}@{row['consumer_group']}", row["queue_id"]): row["consumer_offset"]
        for row in rows
    } == {
        (key, int(queue_id)): offset
        for key, queues in (manifest["consumerOffsets"] or {}).items()
        for queue_id, offset in queues.items()
    }
    for row in rows:
        assert row["lag"] == row["max_offset"] - row["consumer_offset"]
        low_high = row["min_offset"], row["max_offset"]
        assert bounds.get((row["topic"], row["queue_id"]), low_high) == low_high


def check_topics(rows: dict[str, Row], manifest: Manifest, bounds: Bounds) -> None:
    names = {
        "read_queue_count": "readQueueNums",
        "write_queue_count": "writeQueueNums",
        "perm": "perm",
        "is_ordered": "order",
        "filter_type": "topicFilterType",
    }
    for topic, expected in manifest["topics"].items():
        for name, java in names.items():
            assert rows[topic][name] == expected[java], (topic, name)
        assert dict(rows[topic]["attributes"]) == (expected.get("attributes") or {})
    if manifest["opened"]:
        queues = manifest["queues"]
        assert {*rows} == {*manifest["topics"], *(queue["topic"] for queue in queues)}
        for topic, row in rows.items():
            own = [span for (name, _), span in bounds.items() if name == topic]
            with_files = sum(high > 0 for _, high in own)
            count = sum(high - low for low, high in own)
            assert (row["queue_count"], row["message_count"]) == (with_files, count), topic


def check_checkpoint(rows: dict[str, Row], manifest: Manifest) -> None:
    names = {"physical": "physic", "queue": "logics", "index": "index"}
    for shown, java in names.items():
        time_ms = manifest["checkpoint"][f"{java}MsgTimestamp"]
        row = rows[f"{shown}_timestamp"]
        assert (row["value"], row["timestamp"]) == (time_ms, reading.time_of(time_ms))
    assert rows["confirmed_physical_offset"]["timestamp"] is None


@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.sampled(3)
def test_a_crashed_store_lacks_undispatched_units(version: str) -> None:
    rows = read(golden.unpack(version, "unclean"), "consumequeue")
    places = {message["commitLogOffset"] for message in golden.messages(version, "unclean")}
    missing = places - {row["physical_offset"] for row in rows}
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


@pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
@pytest.mark.sampled(2)
def test_gaps_equal_the_damage(version: str, variant: str) -> None:
    """A torn tail is another kind of gap."""
    rows = read(golden.unpack(version, f"torn/{variant}"), "gaps")
    damage = [
        {
            "physical_offset": row["physical_offset"],
            "store_size": row["length"],
            "_corrupt_record": row["reason"],
        }
        for row in rows
        if row["kind"] == "damage"
    ]
    assert reading.runs(damage) == reading.damaged(version, variant).runs
    last = golden.messages(version, "clean")[-1]
    places = {
        "torn-tail": [last["commitLogOffset"]],
        "garbage-tail": [last["commitLogOffset"] + last["storeSize"]],
    }
    if variant in places:
        torn = [row["physical_offset"] for row in rows if row["kind"] == "torn"]
        assert torn == places[variant]


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
