"""The store's settings: what broker.conf says of it, under the same names and defaults.

Read with ``reput.config``. Field names are RocketMQ's keys in snake_case, its odd spellings
included (``warmMapedFileEnable``: ``warm_maped_file_enable``), so that a key can be searched for.
Units are in the types; sizes are bytes unless said. Reference: docs/reference/store-options.md.
"""

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from reput import config
from reput.config import JAVA_INT_MAX, JAVA_LONG_MAX, Range
from reput.errors import InvalidOption
from reput.format import cq_unit
from reput.store import paths

ByteCount = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
Milliseconds = Annotated[int, Range(0)]
LongMilliseconds = Annotated[int, Range(0, JAVA_LONG_MAX)]
Pages = Annotated[int, Range(0)]
"""Of 4096 bytes."""
Percent = Annotated[int, Range(-JAVA_INT_MAX - 1)]
"""Any number, drawn into the range that makes sense, as Java does."""

RECORD_ROOM_BYTES = 64 * 1024
"""What a record may have around a body of ``max_message_size``: head, topic, properties."""
END_OF_FILE_BYTES = 8
"""The blank that closes a log file; each record leaves room for it."""
_SMALLEST_RECORD_BYTES = 92
"""Without body and properties, and a topic of one letter."""

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(enum.StrEnum):
    """Whether a put waits until it is on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    """Who copies from whom, and who waits for it."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = _keys_by_reason(
    {
        "one thread writes and takes no lock": """
            useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree
            topicQueueLockNum debugLockEnable""",
        "puts never wait in a queue of their own": "putMessageTimeout maxAsyncPutMessageRequests",
        "work moves by steps, not by threads that are woken": """
            wakeCommitWhenPutMessage wakeFlushWhenPutMessage flushCommitLogTimed
            batchDispatchRequestThreadPoolNums enableBuildConsumeQueueConcurrently
            dispatchFromSenderThread dispatchCqThreads dispatchCqCacheNum enableAsyncReput
            correctLogicMinOffsetSleepInterval correctLogicMinOffsetForceInterval""",
        "recovery finds what to dispatch in log and queues, however far back": """
            commitLogRecoverMaxNum maxRecoveryCommitlogFiles recheckReputOffsetFromCq
            enableAcceleratedRecovery messageIndexSafe
            enableLogConsumeQueueRepeatedlyBuildWhenRecover""",
        "a record must always stand where it says": "checkCommitLogOffsetOnRecover",
        "after a crash a record is judged by the checksums that it has": """
            checkCRCOnRecover forceVerifyPropCRC""",
        "how bytes reach a file is not an option": """
            writeWithoutMmap sharedByteBufferNum putConsumeQueueDataByFileChannel""",
        "a sync that failed always ends puts": "enableRunningFlagsInFlush",
        "warming a file changes no byte, so there is nothing to sync": """
            flushLeastPagesWhenWarmMapedFile""",
        "a file is mapped while it is used": """
            mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval
            commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval logicQueueSwapMapInterval
            logicQueueSwapMapReserveFileNum cleanSwapedMapInterval""",
        "reading ahead is the system's": """
            dataReadAheadEnable coldDataFlowControlEnable coldDataScanEnable
            accessMessageInMemoryHotRatio timerColdDataCheckIntervalMs sampleSteps""",
        "a pull reads one queue file": "travelCqFileNumWhenGetMessage",
        "nobody estimates how many messages a filter takes": """
            maxConsumeQueueScan sampleCountThreshold""",
        "dispatch always ends at the flushed point under SYNC_FLUSH": "readUnCommitted",
        "maxLmqConsumeQueueNum always limits light queues": "enableLmqQuota",
        "statistics and logs are the broker's": "diskFallRecorded enableScheduleMessageStats",
        "the broker delivers delayed messages in steps": """
            enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
            scheduleAsyncDeliverMaxResendNum2Blocked""",
        "an offset stays until its group or topic is deleted": "enableCleanExpiredOffset",
        "the broker's to keep, see its options": """
            flushConsumerOffsetInterval flushDelayOffsetInterval defaultQueryMaxNum
            expectConsumerNumUseFilter maxErrorRateOfBloomFilter""",
        "filters bring their bits with them, in consumerFilter.json": """
            bitMapLengthConsumeQueueExt""",
        "RocketMQ does not read them either": """
            putMsgIndexHightWater maxBatchDeleteFilesNum pullBatchMaxMessageCount""",
        "replication between brokers is not here": """
            duplicationEnable haListenPort haMasterAddress haSendHeartbeatInterval
            haHousekeepingInterval haTransferBatchSize haMaxTimeSlaveNotCatchup haFlowControlEnable
            maxHaTransferByteInSecond totalReplicas inSyncReplicas minInSyncReplicas
            allAckInSyncStateSet enableAutoInSyncReplicas asyncLearner syncFromLastFile
            syncMasterFlushOffsetWhenStartup maxSlaveResendLength maxChecksumRange
            replicasPerDiskPartition logicalDiskSpaceCleanForciblyThreshold disappearTimeAfterStart
            storePathEpochFile storePathBrokerIdentity""",
        "there is no DLedger here (enableDLegerCommitLog is refused)": """
            enableBatchPush dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
            storePathDLedgerCommitLog""",
        "batches are found without a cache": "searchBcqByCacheEnable",
        "there are no compaction topics here": """
            enableCompaction compactionMappedFileSize compactionCqMappedFileSize compactionThreadNum
            compactionScheduleInternal maxOffsetMapSize""",
        "what waits for the timer is known from its queue; no wheel is kept of it": """
            mappedFileSizeTimerLog timerFlushIntervalMs timerEnableCheckMetrics
            timerMetricSmallThreshold timerProgressLogIntervalMs timerWheelSnapshotFlush
            timerWheelSnapshotIntervalMs timerRecallToTimeWheelEnable timerRecallToTimelineEnable
            appendTopicForTimerDeleteKey""",
        "the timer moves by steps; a message that cannot be read or put holds up no other": """
            timerGetMessageThreadNum timerPutMessageThreadNum timerEnableRetryUntilSuccess
            timerSkipUnknownError timerReputServiceCorePoolSize
            timerReputServiceMaxPoolSize timerReputServiceQueueCapacity""",
        "RocketMQ does not read it any more; a delay level is a level": "timerInterceptDelayLevel",
        "there is no RocksDB here (what would switch it on is refused)": """
            rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
            bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
            statRocksDBCQIntervalSec memTableFlushIntervalMs enableRocksDBLog
            iteratorWhenUseRocksdbConsumeQueue realTimePersistRocksDBConfig
            useSeparateStorePathForRocksdbCQ maxRocksDBIndexQueryDays combineCQLoadingCQTypes
            combineCQPreferCQType combineAssignOffsetCQType combineCQEnableCheckSelf
            combineCQUseRocksdbForLmq combineCQMaxExtraSearchCommitLogFiles timerRocksDBStopScan
            timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
            timerRocksDBRollRangeHours timerRocksDBTimeExpiredMaxTps
            transWriteOriginTransHalfEnable""",
    }
)
"""Keys that RocketMQ has and that change nothing here, each with the reason."""

_NO_ROCKSDB = "this store keeps everything in files, not in RocksDB"

ONLY: Mapping[str, tuple[str, str]] = {
    "storeType": ("default", _NO_ROCKSDB),
    "rocksdbCQDoubleWriteEnable": ("false", _NO_ROCKSDB),
    "indexRocksDBEnable": ("false", _NO_ROCKSDB),
    "timerRocksDBEnable": ("false", _NO_ROCKSDB),
    "transRocksDBEnable": ("false", _NO_ROCKSDB),
    "enableDLegerCommitLog": (
        "false",
        "DLedger frames records in its own way; use master and slave",
    ),
    "indexFileWriteEnable": ("true", "messageIndexEnable=false turns the index off"),
    "indexFileReadEnable": ("true", "messageIndexEnable=false turns the index off"),
}
"""Keys that must be left as they are: what else they can be, this store would do wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """How a store is laid out, written, flushed, kept and read.

    Raises:
        InvalidOption: A value is outside its range, or two contradict each other.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        renamed={
            "haMaxGapNotInSync": "haSlaveFallbehindMax",  # its name in 5.x
            "rocketmq.broker.diskSpaceCleanForciblyRatio": "diskSpaceCleanForciblyRatio",  # 4.x
            "rocketmq.broker.diskSpaceWarningLevelRatio": "diskSpaceWarningLevelRatio",  # 4.x
        },
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- where -----------------------------------------------------------

    store_path_root_dir: str = field(default_factory=lambda: str(Path.home() / "store"))
    """Folder of everything."""
    store_path_commit_log: str | None = None
    """Folders of log files, separated by commas; unset: ``commitlog`` below the root."""
    read_only_commit_log_store_paths: str | None = None
    """Those of them, separated by commas, that get no new files: a disk to be taken out."""

    # --- sizes of files: a store must be opened with those it was made with ---

    mapped_file_size_commit_log: ByteCount = 1024 * 1024 * 1024
    """Bytes of a log file. Expiry frees whole files; the next one is made ahead."""
    mapped_file_size_consume_queue: Annotated[int, Range(1, JAVA_INT_MAX - 27)] = 300_000 * 20
    """Bytes of a queue file, rounded up to whole units of 20; sparse until written."""
    mapper_file_size_batch_consume_queue: Annotated[int, Range(1, JAVA_INT_MAX - 45)] = 300_000 * 46
    """Bytes of a file of a batch queue (5.x, ``queue.type=BatchCQ``), whole units of 46."""
    enable_consume_queue_ext: bool = False
    """Keep store time and filter bits of each message beside the queue: 28 bytes and more."""
    mapped_file_size_consume_queue_ext: ByteCount = 48 * 1024 * 1024
    """Bytes of a file of that extension."""
    max_hash_slot_num: Count = 5_000_000
    """Slots of an index file, 4 bytes each: fewer make longer chains."""
    max_index_num: Annotated[int, Range(2)] = 5_000_000 * 4
    """Entries of an index file, 20 bytes each; the first one is never used."""

    # --- records ---------------------------------------------------------

    max_message_size: Annotated[int, Range(0)] = 4 * 1024 * 1024
    """Bytes of a body at most. ``record_bytes_max`` follows from it."""
    max_topic_length: Annotated[int, Range(1, 32767)] = 127
    """Bytes of a topic at most; above 127 records get a longer head, which 4.x cannot read."""
    auto_message_version_on_topic_len: bool = True
    """Use that longer head where a topic needs it; without it such a topic is refused."""
    enabled_append_prop_crc: bool = False
    """Append a checksum over the whole record to its properties: 20 bytes."""
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """What level 1, 2, ... waits: s, m, h, d, separated by spaces. See ``delay_levels_ms``."""

    # --- the timer: messages with a time of their own -----------------------

    timer_wheel_enable: bool = True
    """Take messages that say when to deliver them; if not, they are refused."""
    timer_precision_ms: Annotated[int, Range(1, 60_000)] = 1_000
    """They are delivered at multiples of this: never early, late by less than this."""
    timer_max_delay_sec: Annotated[int, Range(1)] = 3 * 24 * 3600
    """Longer delays are refused."""
    timer_roll_window_slot: Annotated[int, Range(-JAVA_INT_MAX - 1)] = 2 * 24 * 3600
    """After so many times ``timerPrecisionMs`` a message that waits on is put again, so that it
    does not expire; at most two thirds of ``fileReservedTime``. See ``timer_roll_ms``."""
    timer_congest_num_each_slot: Count = JAVA_INT_MAX
    """Messages due at one time, beyond which more are refused: some, and all from twice as many."""
    timer_stop_enqueue: bool = False
    """What is parked from now on is left in the timer's queue until this is off again, due or not;
    what the timer has taken up it delivers."""

    # --- who waits -------------------------------------------------------

    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH answers when a message is on disk: nothing is lost, each group costs a sync."""
    sync_flush_timeout: Milliseconds = 5_000
    """After this a put that waits for the disk is told so; the message stays."""
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """SYNC_MASTER waits for a slave too; a SLAVE takes no puts."""
    slave_timeout: Milliseconds = 3_000
    """After this a put that waits for a slave is told so; the message stays."""
    ha_slave_fallbehind_max: Annotated[int, Range(0)] = 256 * 1024 * 1024
    """Bytes a slave may be behind and still count as there (5.x: haMaxGapNotInSync)."""
    os_page_cache_busy_time_out_mills: LongMilliseconds = 1_000
    """Milliseconds one put may take until others are turned away as busy."""

    # --- flushing the log ------------------------------------------------

    flush_interval_commit_log: Milliseconds = 500
    """Between two looks at the log under ASYNC_FLUSH."""
    flush_commit_log_least_pages: Pages = 4
    """Fewer written pages wait for the thorough interval."""
    flush_commit_log_thorough_interval: Milliseconds = 10_000
    """After this any written byte is flushed: what a crash of the machine loses at most."""

    # --- the transient store pool: ASYNC_FLUSH on a master only -------------

    transient_store_pool_enable: bool = False
    """Append to memory of our own, committed to the file in steps: the page cache cannot stall a
    put; a crash of the process loses what was not committed."""
    transient_store_pool_size: Count = 5
    """Buffers, each as large as a log file, locked in memory."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    """Refuse puts while no buffer is free."""
    commit_interval_commit_log: Milliseconds = 200
    """Between two commits."""
    commit_commit_log_least_pages: Pages = 4
    """Fewer written pages wait for the thorough interval."""
    commit_commit_log_thorough_interval: Milliseconds = 200
    """After this any written byte is committed."""
    warm_maped_file_enable: bool = False
    """Touch every page of a new log file and lock it in memory: seconds a file, then no stalls."""

    # --- queues ----------------------------------------------------------

    flush_interval_consume_queue: Milliseconds = 1_000
    """Between two looks at the queues."""
    flush_consume_queue_least_pages: Pages = 2
    """Fewer written pages wait for the thorough interval."""
    flush_consume_queue_thorough_interval: Milliseconds = 60_000
    """After this all queues are flushed, and the checkpoint with them; recovery redoes as much."""
    enable_multi_dispatch: bool = False
    """Put a message into the light queues that it names, one unit each."""
    enable_lmq: bool = False
    """Let consumers read light queues, as topics ``%LMQ%name``; with ``enableMultiDispatch``."""
    max_lmq_consume_queue_num: Annotated[int, Range(0)] = 20_000
    """Light queues at most."""
    enable_calc_filter_bit_map: bool = False
    """Evaluate every group's SQL filter when a message is dispatched; needs the extension."""

    # --- index -----------------------------------------------------------

    message_index_enable: bool = True
    """Index messages by key and unique id: about 20 bytes each."""
    index_tags: bool = False
    """Index each tag as well, as 5.4 and later do; 4.9's files have no such entries. Ours alone."""

    # --- expiry ----------------------------------------------------------

    file_reserved_time: Annotated[int, Range(0)] = 72
    """Hours a log file is kept after its last write."""
    delete_when: str = "04"
    """Local hours in which expired files go, separated by ``;``. See ``delete_hours``."""
    clean_resource_interval: Milliseconds = 10_000
    """Between two looks for expired files."""
    delete_commit_log_files_interval: Milliseconds = 100
    """Between two deletions of log files: each may keep the disk busy."""
    delete_consume_queue_files_interval: Milliseconds = 100
    """Between two deletions of queue files."""
    delete_file_batch_max: Count = 10
    """Log files that go in one round at most."""
    destroy_maped_file_interval_forcibly: Milliseconds = 120_000
    """How long a deleted file that is still read stays open."""
    redelete_hanged_file_interval: Milliseconds = 120_000
    """When a file that could not be deleted is tried again."""
    disk_max_used_space_ratio: Percent = 75
    """Percent; above, expired files go at any hour. Drawn into 10..95."""
    clean_file_forcibly_enable: bool = True
    """Allow deletion of files that have not expired."""
    disk_space_clean_forcibly_ratio: Percent = 85
    """Percent; above, files go before they expire. Drawn into 30..85."""
    disk_space_warning_level_ratio: Percent = 90
    """Percent; above, puts are refused. Drawn into 35..90."""
    reput_expire_only_archived: str | None = None
    """Folder of an archive: a log file goes only if it is in there, however old it is and however
    full the disk; unset: nobody asks. Ours alone."""

    # --- reading ---------------------------------------------------------

    max_transfer_bytes_on_message_in_memory: ByteCount = 256 * 1024
    """Bytes of one pull, of messages that are likely cached."""
    max_transfer_count_on_message_in_memory: Count = 32
    """Messages of one pull, likewise."""
    max_transfer_bytes_on_message_in_disk: ByteCount = 64 * 1024
    """Bytes of one pull, of messages further back than memory reaches."""
    max_transfer_count_on_message_in_disk: Count = 8
    """Messages of one pull, likewise."""
    access_message_in_memory_max_ratio: Annotated[int, Range(0, 100)] = 40
    """Percent of memory that the end of the log is taken to have in cache."""
    max_filter_message_size: Annotated[int, Range(0)] = 16_000
    """Bytes of queue units one pull may look at, where its message count does not ask for more."""
    max_msgs_num_batch: Count = 64
    """Messages that a query by key returns at most."""
    offset_check_in_slave: bool = False
    """A slave corrects a wrong offset as a master does; else it returns what was asked for."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        units = -(-self.mapped_file_size_consume_queue // cq_unit.SIZE)
        self._draw("mapped_file_size_consume_queue", units * cq_unit.SIZE)
        units = -(-self.mapper_file_size_batch_consume_queue // cq_unit.BATCH_SIZE)
        self._draw("mapper_file_size_batch_consume_queue", units * cq_unit.BATCH_SIZE)
        for name, least, most in _DRAWN:
            self._draw(name, min(max(getattr(self, name), least), most))
        if not self.store_path_root_dir:
            raise InvalidOption("storePathRootDir", "", "a folder")
        room = self.mapped_file_size_commit_log - END_OF_FILE_BYTES - _SMALLEST_RECORD_BYTES
        if self.max_message_size > room:
            size = self.mapped_file_size_commit_log
            allowed = f"at most {room}, so that a record fits in a log file of {size} bytes"
            raise InvalidOption("maxMessageSize", self.max_message_size, allowed)
        archive = self.reput_expire_only_archived
        if archive is not None and ("://" in archive or not archive):
            allowed = "a folder of this machine; expiry does not wait for a network"
            raise InvalidOption("reputExpireOnlyArchived", archive, allowed)
        # Wrong text is found now, not when the first delayed message or the hour comes.
        _ = self.delay_levels_ms, self.delete_hours

    @property
    def commit_log_folders(self) -> tuple[str, ...]:
        """The folders of log files, as paths; the one below the root unless others are named."""
        default = f"{self.store_path_root_dir}/{paths.COMMIT_LOG}"
        return _folders(self.store_path_commit_log) or (default,)

    @property
    def read_only_commit_log_folders(self) -> tuple[str, ...]:
        """Those that get no new files."""
        return _folders(self.read_only_commit_log_store_paths)

    @property
    def record_bytes_max(self) -> int:
        """Bytes of a whole record at most.

        Java's bound, and never more than a log file can hold: Java then answers success and stores
        nothing.
        """
        room = self.mapped_file_size_commit_log - END_OF_FILE_BYTES
        return min(self.max_message_size + RECORD_ROOM_BYTES, room)

    @property
    def uses_transient_store_pool(self) -> bool:
        """Whether appends go to the pool: only where nobody waits for the disk."""
        is_async = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        is_master = self.broker_role is not BrokerRole.SLAVE
        return self.transient_store_pool_enable and is_async and is_master

    @property
    def timer_roll_ms(self) -> int:
        """After how many ms a message that waits for the timer is put again.

        A third of the time that log files are kept is left for brokers that stand still.
        """
        slots = self.timer_roll_window_slot
        if not 2 <= slots <= _TIMER_SLOTS_MAX:  # as Java has it
            slots = _TIMER_SLOTS_MAX
        kept_ms = self.file_reserved_time * _UNIT_MS["h"]
        return max(
            2 * self.timer_precision_ms, min(slots * self.timer_precision_ms, kept_ms * 2 // 3)
        )

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """What each delay level waits, milliseconds; level 1 is the first."""
        return _levels_ms(self.message_delay_level)

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The local hours in which expired files go."""
        words = self.delete_when.split(";")
        if not all(re.fullmatch(r"[01]?[0-9]|2[0-3]", word.strip()) for word in words):
            raise InvalidOption("deleteWhen", self.delete_when, "hours from 00 to 23, as in 04;05")
        return tuple(int(word) for word in words)

    def _draw(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)


_TIMER_SLOTS_MAX = 7 * 24 * 3600 - 60
"""Slots of Java's wheel that can be waited in."""
_DRAWN = (
    ("disk_max_used_space_ratio", 10, 95),
    ("disk_space_clean_forcibly_ratio", 30, 85),
    ("disk_space_warning_level_ratio", 35, 90),
)
"""Percentages that Java draws into a range: (field, least, most)."""


def _folders(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@functools.lru_cache(16)
def _levels_ms(text: str) -> tuple[int, ...]:
    matches = [re.fullmatch(r"([0-9]{1,9})([smhd])", word) for word in text.split()]
    levels = tuple(int(one[1]) * _UNIT_MS[one[2]] for one in matches if one)
    if not levels or len(levels) < len(matches):
        raise InvalidOption("messageDelayLevel", text, "times such as 1s 5m 2h 1d, spaces between")
    return levels
