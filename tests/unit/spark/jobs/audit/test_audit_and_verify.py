"""``reput store verify`` and the job ``audit`` agree on a store, however it is damaged.

Verify counts units and files, the audit messages; ``pairs`` lists the numbers that must agree.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import golden
import seeds
import store_builder
from reput.spark.jobs.audit import message_table, run_audit
from reput.spark.jobs.audit.verdicts import Fault, Indexed, MessageVerdict, Reason
from reput.spark.jobs.running import SequentialRunner
from reput.store.reader import StoreReader
from reput.store.verify import FindingKind, verify

FAMILIES = ("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index")
UNIT_BYTES = {"consumequeue": 20, "batchconsumequeue": 46}
LATER_MS = 2_000_000_000_000
RANGE_BYTES = 50_000
LIGHT_KINDS = ("no unit", "another size", "another tags code")


def pairs(store: Path, table: Path) -> Iterator[tuple[str, object, object]]:
    """Yield the comparable numbers of a store: name, number of verify, number of the audit."""
    audit = run_audit(
        SequentialRunner(), str(store), now_ms=LATER_MS, table=str(table), range_bytes=RANGE_BYTES
    )
    rows = pq.read_table(table / message_table.MESSAGES, columns=["verdict", "reason"])
    reasons = Counter(row["reason"] for row in rows.to_pylist())
    report = verify(StoreReader.open(str(store)))
    kinds: Counter[FindingKind] = Counter()
    for finding in report.findings:
        kinds[finding.kind] += 1 if finding.count is None else finding.count
    faults, indexed = Counter(audit.faults), Counter(audit.indexed)
    verdicts = Counter(audit.verdicts)
    light = Counter[str]()
    for finding in audit.findings:
        if finding.fault is Fault.LIGHT_UNIT:
            light.update({kind: finding.count for kind in LIGHT_KINDS if kind in finding.text})

    holes = [
        (hole.damage.physical_offset, hole.damage.length)
        for hole in report.holes
        if hole.kind in (FindingKind.LOG_HOLE, FindingKind.LOG_FILE_MISSING)
    ]
    audit_holes = [(hole.physical_offset, hole.length) for hole in audit.holes]
    yield "holes", holes[: len(audit_holes)], audit_holes
    yield "count of holes", len(holes), audit.hole_count
    yield "records", report.record_count, audit.messages
    no_unit = reasons[Reason.NO_UNIT] + faults[Fault.UNIT_ZERO] + light["no unit"]
    ahead = (
        faults[Fault.GROUP_AHEAD] + faults[Fault.GROUP_WITHOUT_QUEUE] + faults[Fault.DELAY_AHEAD]
    )
    kind, fault = FindingKind, Fault
    counted: list[tuple[str, tuple[FindingKind, ...], int]] = [
        ("torn tail", (kind.TORN_TAIL,), faults[fault.TORN_TAIL]),
        ("stale tail", (kind.STALE_TAIL,), faults[fault.STALE_TAIL]),
        ("pending", (kind.NOT_DISPATCHED,), verdicts[MessageVerdict.UNDISPATCHED]),
        ("without a unit, or units of zeros", (kind.UNIT_MISSING, kind.UNIT_ZERO), no_unit),
        (
            "wrong size",
            (kind.UNIT_WRONG_SIZE,),
            reasons[Reason.WRONG_SIZE] + light["another size"],
        ),
        (
            "wrong tags",
            (kind.UNIT_WRONG_TAGS,),
            reasons[Reason.WRONG_TAGS] + light["another tags code"],
        ),
        ("after the log", (kind.UNIT_STALE,), reasons[Reason.AFTER_END]),
        ("in a hole", (kind.UNIT_IN_HOLE,), reasons[Reason.IN_HOLE]),
        ("filler", (kind.UNIT_BLANK,), faults[fault.UNIT_BLANK]),
        ("invalid", (kind.UNIT_INVALID,), faults[fault.UNIT_INVALID]),
        (
            "pointing elsewhere",
            (kind.UNIT_WRONG_RECORD,),
            faults[fault.UNIT_WRONG_RECORD] + faults[fault.UNIT_TWICE],
        ),
        ("chains", (kind.INDEX_CHAIN,), faults[fault.INDEX_CHAIN]),
        ("keys", (kind.KEY_MISSING,), indexed[Indexed.MISSING]),
        ("stale entries", (kind.ENTRY_STALE,), faults[fault.ENTRY_STALE]),
        ("stray entries", (kind.ENTRY_IN_HOLE, kind.ENTRY_WRONG), faults[fault.ENTRY_STRAY]),
        ("tables", (kind.TABLE,), faults[fault.TABLE]),
        ("groups ahead", (kind.CONSUMER_OFFSET,), ahead),
        ("file sizes", (kind.LOG_FILE_SIZE, kind.QUEUE_FILE_SIZE), faults[fault.FILE_SIZE]),
    ]
    if not kinds[kind.INDEX_ABSENT]:  # otherwise verify reports them as one finding
        not_covered = indexed[Indexed.UNCOVERED] + indexed[Indexed.PENDING]
        counted.append(("not indexed", (kind.NOT_INDEXED,), not_covered))
    for name, of_verify, of_audit in counted:
        yield name, sum(kinds[each] for each in of_verify), of_audit


def disagreements(store: Path, table: Path) -> list[tuple[str, object, object]]:
    return [(name, mine, theirs) for name, mine, theirs in pairs(store, table) if mine != theirs]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *golden.EACH_STORE,
        *((version, f"torn/{variant}") for version, variant in golden.EACH_DAMAGE),
    ],
)
@pytest.mark.sampled(7)
def test_audit_and_verify_agree_on_stores_of_java(version: str, name: str, tmp_path: Path) -> None:
    assert not disagreements(golden.unpack(version, name), tmp_path / "table")


def damage_at_random(store: Path, chance: random.Random) -> str:
    """Damage a file at a random place; return a description."""
    there = [family for family in FAMILIES if (store / family).is_dir()]
    family = chance.choice(there)
    files = sorted(file for file in (store / family).rglob("*") if file.is_file())
    path = chance.choice([file for file in files if file.stat().st_size])
    data = bytearray(path.read_bytes())
    used = max(len(data.rstrip(b"\0")), 1)
    size = UNIT_BYTES.get(family, 20)
    position, source = (chance.randrange(used) // size * size for _ in range(2))
    kind = chance.choice(["flip", "flip", "zero", "copy", "cut"])
    if kind == "flip":
        position = min(position + chance.randrange(size), len(data) - 1)
        data[position] ^= 1 << chance.randrange(8)
    elif kind == "zero":
        data[position : position + size] = bytes(len(data[position : position + size]))
    elif kind == "copy":
        some = bytes(data[source : source + size])
        data[position : position + len(some)] = some[: len(data) - position]
    else:
        data = data[:position]
    path.write_bytes(data)
    return f"{kind} {path.relative_to(store)} at {position}"


@pytest.mark.parametrize("seed", range(400 if golden.IS_SOAK else 40))
@pytest.mark.sampled(12)
def test_audit_and_verify_agree_on_random_damage(seed: int, tmp_path: Path) -> None:
    """Damage plain, batch and extended queues, the log and the index, of all versions."""
    chance = seeds.random("audit and verify", seed)
    version, name = golden.STORES[seed % len(golden.STORES)]
    store = golden.copy_store(version, name, tmp_path)
    done = [damage_at_random(store, chance) for _ in range(chance.choice([1, 1, 2]))]
    assert not disagreements(store, tmp_path / "table"), (version, name, done)
    shutil.rmtree(store)


def test_audit_and_verify_agree_on_units_of_a_light_queue(tmp_path: Path) -> None:
    """Without a unit in the middle or at the end, and with a wrong one."""
    store = golden.copy_store("5.5.0", "v5", tmp_path)
    path = store / "consumequeue" / "%LMQ%first" / "0" / "00000000000000000000"
    units = path.read_bytes()
    for position, data, kind in (
        (3 * 20, bytes(20), "without a unit, or units of zeros"),
        (9 * 20, bytes(20), "without a unit, or units of zeros"),
        (3 * 20 + 8, b"\0\0\0\1", "wrong size"),
        (3 * 20 + 12, b"\0\0\0\0\0\0\0\1", "wrong tags"),
    ):
        path.write_bytes(units[:position] + data + units[position + len(data) :])
        counts = [*pairs(store, tmp_path / "table")]
        assert (kind, 1, 1) in counts
        assert [name for name, mine, theirs in counts if mine != theirs] == []


# Files of 5 units: 6 files, of which Java checks those from queue offset 15 on.
def test_audit_and_verify_agree_on_zeros_after_a_crash(tmp_path: Path) -> None:
    """A start overwrites zeros in the last three files of a queue, except for their first unit.

    Seen with brokers of 4.9.7 and 5.5.0: zeros in earlier files stay, and pulls of them fail. If
    the first unit of the three files is zeros, the broker writes the unit of message 0 there.
    """
    # Files of 5 units: 6 files, of which Java checks those from queue offset 15 on.
    messages = store_builder.messages(30, topics=1, queues=1)
    built = store_builder.build(tmp_path / "store", messages, queue_file_units=5)
    (built.root / "abort").touch()
    (built.root / "checkpoint").unlink(missing_ok=True)  # a start dispatches the whole log
    for queue_offset, pending in ((5, False), (14, False), (15, False), (16, True), (27, True)):
        path = built.queue_file(messages[0].topic, number=queue_offset // 5)
        units, position = path.read_bytes(), queue_offset % 5 * 20
        path.write_bytes(units[:position] + bytes(20) + units[position + 20 :])
        counts = {
            name: (mine, theirs) for name, mine, theirs in pairs(built.root, tmp_path / "table")
        }
        assert counts["pending"] == (pending, pending)
        assert counts["without a unit, or units of zeros"] == (not pending, not pending)
        assert all(mine == theirs for mine, theirs in counts.values())
        path.write_bytes(units)
