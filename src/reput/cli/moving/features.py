"""Checks of what a Java broker uses: what reput has not, and what waits in the store."""

from collections.abc import Mapping
from pathlib import Path

from reput.broker.access.plain_file import PlainFiles
from reput.broker.settings.config import BrokerSettings
from reput.cli.moving.findings import Findings
from reput.errors import CorruptRecord, InvalidOption
from reput.format import names
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.foreign.ledger_reader import LedgerReader
from reput.store.reader import CONVERT, StoreReader, export_rocksdb, rocksdb_tables
from reput.store.tables import config_tables

DEFAULT_DELAY_LEVELS = StoreConfig.__dataclass_fields__["message_delay_level"].default

_ROCKSDB_STORES = {
    "rocksdbstore": "index, timer messages or half messages",
    "kvStore": "messages that are popped and not acknowledged",
}
"""Folders of RocksDB that 5.4 and later create, empty at first -> what they have in other modes."""
_DRAIN = (
    "reput does not read this form of tables (configManagerVersion=v2): let another broker take "
    "new messages, and this one serve what it has until it is consumed (reput cluster drain)"
)
_STATIC_TOPICS = f"{paths.CONFIG}/topicQueueMapping.json"
_TIERED = f"{paths.CONFIG}/tieredStoreMetadata.json"
_CONTROLLER = "epochFileCheckpoint"


def check(reader: StoreReader, settings: BrokerSettings, now_ms: int) -> Findings:
    """Check which features of RocketMQ a store uses.

    Args:
        reader: The store.
        settings: Settings with which reput would open it.
        now_ms: The time in ms.
    """
    findings = Findings("features")
    _check_folders(reader, findings)
    for check_one in (_check_topics, _check_waiting):
        try:
            check_one(reader, settings.store, findings)
        except CorruptRecord as error:
            findings.stop("tables", str(error), "repair this file, or restore it from a backup")
    _check_access(reader, settings, findings, now_ms)
    if not findings.all:
        findings.ok("in use", "nothing that reput lacks")
    return findings


# --- other kinds of stores ----------------------------------------------------------------------


def _check_folders(reader: StoreReader, findings: Findings) -> None:
    folder = reader.folder
    for mark, what in paths.ROCKSDB_MARKS.items():
        entry = folder.entry(mark)
        is_topic = mark.startswith(f"{paths.CONSUME_QUEUE}/") and entry and entry.is_folder
        if entry is not None and not is_topic:
            findings.stop(
                "RocksDB",
                f"{what} are in RocksDB: {mark}",
                _DRAIN
                if mark == paths.ROCKSDB_SECOND_FORM
                else _after_stop("rocksdb", folder.location),
            )
    for path, is_in_use in rocksdb_tables(folder).items():
        table = paths.ROCKSDB_TABLES[path]
        if is_in_use:
            fact = f"{path} is in RocksDB, and {table} is older, or does not exist"
            findings.stop("RocksDB", fact, export_rocksdb(folder, path))
        else:
            action = f"move {path} away: {table} is newer, and is the one that is read"
            findings.warn("RocksDB", f"{path} is in RocksDB, besides {table}", action)
    for path, what in _ROCKSDB_STORES.items():
        if size := _rocksdb_bytes(reader, path):
            findings.stop(
                "RocksDB",
                f"{path} has {size} bytes: {what}",
                "switch this mode off in the Java broker, and wait until the folder is not used; "
                "if nothing in it is needed, move it away after the stop",
            )
    if folder.entry(_TIERED) is not None:
        findings.stop(
            "tiered storage",
            f"{_TIERED} exists: old messages may be in the second tier only",
            "let all groups read them first, remove messageStorePlugIn, and move this file away; "
            "reput serves the commit log alone",
        )
    if isinstance(reader, LedgerReader):
        _check_ledger(reader, findings)
    if folder.entry(_CONTROLLER) is not None:
        findings.warn(
            "controller",
            f"{_CONTROLLER} exists: a controller has elected masters",
            "keep enableControllerMode=true and the controllers; or start reput on the store of "
            "the current master, and configure its slaves by hand",
        )
    if (mappings := _member_count(reader, _STATIC_TOPICS, "topicQueueMappingInfoMap")) > 0:
        findings.stop(
            "static topics",
            f"{mappings} topics are mapped to several brokers: {_STATIC_TOPICS}",
            "move their messages to other topics; reput does not map queues",
        )


def _check_ledger(reader: LedgerReader, findings: Findings) -> None:
    """Say how a store leaves DLedger, and which member of the group to take."""
    state = reader.ledger_state
    findings.stop(
        "DLedger",
        f"the log is in {state.member}, with DLedger's frames",
        _after_stop("dledger", reader.location),
    )
    findings.warn(
        "DLedger",
        f"{state.member} has entries up to {state.last_index} of term {state.last_term}, committed "
        f"up to {'unknown' if state.committed_index is None else state.committed_index}",
        "stop all members, and convert the one with the last entry of the highest term, and then "
        "with the highest entry: it has all that is committed",
    )


def _after_stop(form: str, location: str) -> str:
    return f"after the stop, {CONVERT.format(form=form, folder=location)}"


def _rocksdb_bytes(reader: StoreReader, path: str) -> int:
    """Return the bytes of a RocksDB's data and its log of writes; 0 if it is empty."""
    files = reader.folder.entries(path)
    return sum(file.size for file in files if file.name.endswith((".sst", ".log")))


def _member_count(reader: StoreReader, path: str, member: str) -> int:
    try:
        return len(config_tables.member(config_tables.load(reader.folder, path), member, path))
    except CorruptRecord:
        return 1


# --- topics -------------------------------------------------------------------------------------


def _check_topics(reader: StoreReader, config: StoreConfig, findings: Findings) -> None:
    topics = reader.topics()
    compacted, batches = [], []
    for name, topic in topics.items():
        given = dict(topic.attributes)
        if given.get("cleanup.policy", "").upper() == "COMPACTION":
            compacted.append(name)
        if config_tables.BATCH_QUEUES in topic.attributes:
            batches.append(name)
    if compacted:
        findings.stop(
            "compaction topics",
            _listed(compacted),
            "reput serves all of their messages, and expires them by age: move them to other "
            "topics, or remove the attribute cleanup.policy if that is acceptable",
        )
    if batches:
        findings.ok("batch queues", f"{_listed(batches)}: supported")
    light = [name for name in reader.queue_ids if names.is_light(name)]
    has_offsets = reader.folder.entry(paths.LIGHT_CONSUMER_OFFSETS) is not None
    if (light or has_offsets) and not config.enable_lmq:
        findings.warn(
            "light queues",
            f"{len(light)} light queues; their offsets are in {paths.LIGHT_CONSUMER_OFFSETS}"
            if has_offsets
            else f"{len(light)} light queues, and enableLmq=false",
            "set enableLmq=true and enableMultiDispatch=true, as the old broker has it",
        )


def _listed(topics: list[str]) -> str:
    more = f" and {len(topics) - 3} more" if len(topics) > 3 else ""
    return f"{', '.join(topics[:3])}{more}"


# --- what waits ---------------------------------------------------------------------------------


def waiting(reader: StoreReader) -> Mapping[str, int]:
    """Return the messages that wait in the store, by what they wait for.

    Half messages, pops and timer messages are upper bounds: which of them are done is not known
    without reading the messages.

    Raises:
        CorruptRecord: A table cannot be read.
    """
    offsets = {
        (entry.topic, entry.group, entry.queue_id): entry.consumer_offset
        for entry in reader.consumer_offsets()
    }

    def lag(topic: str, group: str) -> int:
        return sum(
            max(0, queue.max_offset - max(queue.min_offset, offsets.get((topic, group, number), 0)))
            for number in reader.queue_ids.get(topic, ())
            for queue in (reader.queue(topic, number),)
        )

    delayed = sum(max(0, end - done) for _, done, end in reader.delay_progress())
    revive = [topic for topic in reader.queue_ids if topic.startswith(names.REVIVE_TOPIC_PREFIX)]
    timer = reader.queue(names.TIMER_TOPIC, 0)
    return {
        "a delay level": delayed,
        "the end of their transaction": lag(names.HALF_TOPIC, names.TRANSACTION_GROUP),
        "the timer": timer.max_offset - max(timer.min_offset, _oldest_timer(reader)),
        "an acknowledgement of a pop": sum(lag(topic, names.REVIVE_GROUP) for topic in revive),
    }


def _oldest_timer(reader: StoreReader) -> int:
    """Return the oldest queue offset of the timer's queue that may wait, as far as it is known."""
    table = config_tables.load(reader.folder, paths.TIMER_PROGRESS)
    entry = config_tables.member(table, "timer", paths.TIMER_PROGRESS).get("oldest", 0)
    return entry if isinstance(entry, int) else 0


def _check_waiting(reader: StoreReader, config: StoreConfig, findings: Findings) -> None:
    counts = waiting(reader)
    texts = [f"{count} for {what}" for what, count in counts.items() if count]
    if texts:
        findings.ok("waiting messages", f"at most {', '.join(texts)}: they go along")
    if counts["the timer"] and not config.timer_wheel_enable:
        findings.warn(
            "timer",
            f"at most {counts['the timer']} messages wait, and timerWheelEnable=false",
            "set timerWheelEnable=true until they are delivered",
        )
    level_count = len(config.delay_levels_ms)
    beyond = [
        level for level, done, end in reader.delay_progress() if level > level_count and end > done
    ]
    if beyond:
        findings.stop(
            "delay levels",
            f"messages wait for level {beyond[0]}; messageDelayLevel has {level_count} levels",
            "set messageDelayLevel to that of the old broker",
        )
    elif config.message_delay_level != DEFAULT_DELAY_LEVELS and counts["a delay level"]:
        findings.ok("delay levels", f"{level_count} levels of messageDelayLevel")


# --- access control -----------------------------------------------------------------------------


def _check_access(
    reader: StoreReader, settings: BrokerSettings, findings: Findings, now_ms: int
) -> None:
    broker, access = settings.broker, settings.access
    if broker.acl_enable:
        files = PlainFiles(broker.rocketmq_home, broker.reput_acl_file)
        try:
            count = len(files.load(now_ms).accounts)
        except InvalidOption as error:
            findings.stop("access control 1.0", str(error), "correct this file")
        else:
            findings.ok("access control 1.0", f"{count} accounts in {files.default_path}")
    in_rocksdb = reader.folder.entry(paths.JAVA_USERS) is not None
    has_users = reader.folder.entry(paths.USERS) is not None
    if in_rocksdb and not has_users:
        fact = f"users and rules are in the RocksDB store {Path(paths.JAVA_USERS).parent}"
        action = (
            "copy them from the running Java broker: reput access user copy, reput access acl copy "
            "(docs/how-to/secure-a-broker.md)"
        )
        add = findings.stop if access.authentication_enabled else findings.warn
        add("access control 2.0", fact, action)
    elif access.authentication_enabled:
        users = _member_count(reader, paths.USERS, "userTable") if has_users else 0
        first = len(access.first_users)
        if users + first:
            findings.ok("access control 2.0", f"{users} users, and {first} of the settings")
        else:
            findings.stop(
                "access control 2.0",
                "authenticationEnabled=true, and there are no users",
                "set initAuthenticationUser, or copy the users: reput access user copy",
            )
