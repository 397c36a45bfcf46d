"""The options of the store, with the names and defaults of broker.conf.

They are read with ``reput.config``. Field names are RocketMQ's keys in snake_case, including odd
spellings (``warmMapedFileEnable``: ``warm_maped_file_enable``), so that a key can be searched for.
Types have the units; sizes are in bytes by default. Reference: docs/reference/store-options.md.
"""

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from reput import config
from reput.config import JAVA_INT_MAX, JAVA_LONG_MAX, Range
from reput.errors import InvalidOption
from reput.format import cq_unit
from reput.store.files import paths

ByteCount = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
Milliseconds = Annotated[int, Range(0)]
LongMilliseconds = Annotated[int, Range(0, JAVA_LONG_MAX)]
Pages = Annotated[int, Range(0)]
"""Number of pages of 4096 bytes."""
Percent = Annotated[int, Range(-JAVA_INT_MAX - 1)]
"""Any number, clamped to a sensible range, as in Java."""

RECORD_ROOM_BYTES = 64 * 1024
"""Bytes of a record in addition to a body of ``max_message_size``: head, topic, properties."""
END_OF_FILE_BYTES = 8
"""Size of the blank that ends a log file; each record leaves space for it."""
_SMALLEST_RECORD_BYTES = 92
"""Size of a record without body and properties, with a topic of one letter."""

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_ADDRESS = re.compile(r"[^\s:]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}")


class FlushDiskType(enum.StrEnum):
    """When a put is acknowledged: before or after it is on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    """Role in replication, and whether puts wait for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class DurableIn(enum.StrEnum):
    """Where bytes must be before they count as replicated."""

    MEMORY = "memory"
    DISK = "disk"


class DivergedPolicy(enum.StrEnum):
    """Action of a slave whose log differs from its master's."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


def _keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = _keys_by_reason(
    {
        "one thread writes and takes no lock": """
            useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree
            topicQueueLockNum debugLockEnable""",
        "puts never wait in a separate queue": "putMessageTimeout maxAsyncPutMessageRequests",
        "work is done in steps, not by threads": """
            wakeCommitWhenPutMessage wakeFlushWhenPutMessage
            batchDispatchRequestThreadPoolNums enableBuildConsumeQueueConcurrently
            dispatchFromSenderThread dispatchCqThreads dispatchCqCacheNum enableAsyncReput
            correctLogicMinOffsetSleepInterval correctLogicMinOffsetForceInterval""",
        "recovery derives the start of dispatch from log and queues, however far back": """
            commitLogRecoverMaxNum maxRecoveryCommitlogFiles recheckReputOffsetFromCq
            enableAcceleratedRecovery messageIndexSafe
            enableLogConsumeQueueRepeatedlyBuildWhenRecover""",
        "a record must always contain its own offset": "checkCommitLogOffsetOnRecover",
        "after a crash the checksums that a record has are always compared": """
            checkCRCOnRecover forceVerifyPropCRC""",
        "how bytes are written to a file is not an option": """
            writeWithoutMmap sharedByteBufferNum putConsumeQueueDataByFileChannel""",
        "a failed sync always ends puts": "enableRunningFlagsInFlush",
        "warming changes no byte of a file, so there is nothing to sync": """
            flushLeastPagesWhenWarmMapedFile""",
        "a file is mapped while it is used": """
            mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval
            commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval logicQueueSwapMapInterval
            logicQueueSwapMapReserveFileNum cleanSwapedMapInterval""",
        "the operating system reads ahead": """
            dataReadAheadEnable coldDataFlowControlEnable coldDataScanEnable
            accessMessageInMemoryHotRatio timerColdDataCheckIntervalMs sampleSteps""",
        "a pull reads one queue file": "travelCqFileNumWhenGetMessage",
        "there is no estimate of how many messages match a filter": """
            maxConsumeQueueScan sampleCountThreshold""",
        "dispatch always ends at the flushed point under SYNC_FLUSH": "readUnCommitted",
        "maxLmqConsumeQueueNum always limits light queues": "enableLmqQuota",
        "statistics and logs are the broker's": "diskFallRecorded enableScheduleMessageStats",
        "the broker delivers delayed messages in steps": """
            enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
            scheduleAsyncDeliverMaxResendNum2Blocked""",
        "an offset stays until its group or topic is deleted": "enableCleanExpiredOffset",
        "these are options of the broker": """
            flushConsumerOffsetInterval flushDelayOffsetInterval defaultQueryMaxNum
            expectConsumerNumUseFilter maxErrorRateOfBloomFilter""",
        "filters include their bits, in consumerFilter.json": """
            bitMapLengthConsumeQueueExt""",
        "RocketMQ does not use them either": """
            putMsgIndexHightWater maxBatchDeleteFilesNum pullBatchMaxMessageCount""",
        "the number of slaves is that of their connections": "totalReplicas",
        "a slave compares its last record with its master's, and refuses to guess": """
            syncMasterFlushOffsetWhenStartup maxSlaveResendLength maxChecksumRange
            disappearTimeAfterStart""",
        "a store uses one folder, or several that it fills in turn": """
            replicasPerDiskPartition logicalDiskSpaceCleanForciblyThreshold""",
        "DLedger is not supported (enableDLegerCommitLog is refused)": """
            enableBatchPush dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
            storePathDLedgerCommitLog""",
        "batches are found without a cache": "searchBcqByCacheEnable",
        "compaction topics are not supported": """
            enableCompaction compactionMappedFileSize compactionCqMappedFileSize compactionThreadNum
            compactionScheduleInternal maxOffsetMapSize""",
        "messages that wait for the timer are found in its queue; there is no wheel": """
            mappedFileSizeTimerLog timerFlushIntervalMs timerEnableCheckMetrics
            timerMetricSmallThreshold timerProgressLogIntervalMs timerWheelSnapshotFlush
            timerWheelSnapshotIntervalMs timerRecallToTimeWheelEnable timerRecallToTimelineEnable
            appendTopicForTimerDeleteKey""",
        "the timer works in steps; a message that cannot be read or put delays no other": """
            timerGetMessageThreadNum timerPutMessageThreadNum timerEnableRetryUntilSuccess
            timerSkipUnknownError timerReputServiceCorePoolSize
            timerReputServiceMaxPoolSize timerReputServiceQueueCapacity""",
        "RocketMQ no longer uses it; a delay level is a level": "timerInterceptDelayLevel",
        "RocksDB is not supported (options that enable it are refused)": """
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
"""RocketMQ's keys without an effect here, with the reason of each."""

_NO_ROCKSDB = "this store uses files, not RocksDB"

ONLY: Mapping[str, tuple[str, str]] = {
    "storeType": ("default", _NO_ROCKSDB),
    "rocksdbCQDoubleWriteEnable": ("false", _NO_ROCKSDB),
    "indexRocksDBEnable": ("false", _NO_ROCKSDB),
    "timerRocksDBEnable": ("false", _NO_ROCKSDB),
    "transRocksDBEnable": ("false", _NO_ROCKSDB),
    "duplicationEnable": ("false", "messages are copied to slaves by replication"),
    "enableDLegerCommitLog": (
        "false",
        "DLedger frames records differently; use master and slave",
    ),
    "indexFileWriteEnable": ("true", "messageIndexEnable=false turns the index off"),
    "indexFileReadEnable": ("true", "messageIndexEnable=false turns the index off"),
}
"""Keys that must have their default: this store does not support other values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """Layout, durability, retention and reading of a store.

    Raises:
        InvalidOption: A value is outside its range, or two contradict each other.
    """

    keys: ClassVar[config.Keys] = config.Keys(
        renamed={
            "haMaxGapNotInSync": "haSlaveFallbehindMax",  # its name in 5.x
            "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",  # a former spelling
            "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",  # likewise
            "rocketmq.broker.diskSpaceCleanForciblyRatio": "diskSpaceCleanForciblyRatio",  # 4.x
            "rocketmq.broker.diskSpaceWarningLevelRatio": "diskSpaceWarningLevelRatio",  # 4.x
        },
        without_effect=ACCEPTED_WITHOUT_EFFECT,
        only=ONLY,
    )

    # --- folders -----------------------------------------------------------

    store_path_root_dir: str = field(default_factory=lambda: _in_home("store"))
    """Root folder of the store."""
    store_path_commit_log: str | None = None
    """Folders of log files, separated by commas; by default ``commitlog`` in the root."""
    read_only_commit_log_store_paths: str | None = None
    """Folders of the log that get no new files, separated by commas: a disk to be removed."""

    # --- sizes of files: a store must be opened with the sizes it was created with ---

    mapped_file_size_commit_log: ByteCount = 1024 * 1024 * 1024
    """Size of a log file in bytes. Expiry deletes whole files; the next one is created ahead."""
    mapped_file_size_consume_queue: Annotated[int, Range(1, JAVA_INT_MAX - 27)] = 300_000 * 20
    """Size of a queue file in bytes, rounded up to whole units of 20; sparse until written."""
    mapper_file_size_batch_consume_queue: Annotated[int, Range(1, JAVA_INT_MAX - 45)] = 300_000 * 46
    """Size of a batch queue file in bytes (5.x, ``queue.type=BatchCQ``), whole units of 46."""
    enable_consume_queue_ext: bool = False
    """Store time and filter bits of each message are kept next to its queue: 28 bytes or more."""
    mapped_file_size_consume_queue_ext: ByteCount = 48 * 1024 * 1024
    """Size of a file of that extension, in bytes."""
    max_hash_slot_num: Count = 5_000_000
    """Slots of an index file, 4 bytes each; with fewer slots, chains are longer."""
    max_index_num: Annotated[int, Range(2)] = 5_000_000 * 4
    """Entries of an index file, 20 bytes each; the first one is unused."""

    # --- records ---------------------------------------------------------

    max_message_size: Annotated[int, Range(0)] = 4 * 1024 * 1024
    """Maximum size of a body in bytes. ``record_bytes_max`` follows from it."""
    max_topic_length: Annotated[int, Range(1, 32767)] = 127
    """Maximum length of a topic in bytes; above 127, 4.x cannot read the records' longer heads."""
    auto_message_version_on_topic_len: bool = True
    """Use the longer head if a topic requires it; otherwise such a topic is refused."""
    enabled_append_prop_crc: bool = False
    """Append a checksum of the whole record to its properties: 20 bytes."""
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of levels 1, 2, ... in s, m, h or d, separated by spaces. See ``delay_levels_ms``."""

    # --- the timer: messages with a delivery time -----------------------------

    timer_wheel_enable: bool = True
    """Accept messages with a delivery time; otherwise they are refused."""
    timer_precision_ms: Annotated[int, Range(1, 60_000)] = 1_000
    """Messages are delivered at multiples of this: never early, and late by less than this."""
    timer_max_delay_sec: Annotated[int, Range(1)] = 3 * 24 * 3600
    """Longer delays are refused."""
    timer_roll_window_slot: Annotated[int, Range(-JAVA_INT_MAX - 1)] = 2 * 24 * 3600
    """After this many times ``timerPrecisionMs`` a waiting message is copied, so that it does not
    expire; at most two thirds of ``fileReservedTime``. See ``timer_roll_ms``."""
    timer_congest_num_each_slot: Count = JAVA_INT_MAX
    """Number of messages due at one time above which some are refused, and all from twice that."""
    timer_stop_enqueue: bool = False
    """Messages put while this is set stay in the timer's queue until it is off again, due or not;
    messages that the timer has read before are delivered."""

    # --- acknowledgement of puts --------------------------------------------

    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH answers when a message is on disk: no loss, one sync for each group of puts."""
    sync_flush_timeout: Milliseconds = 5_000
    """Timeout of a put that waits for the disk; the message stays."""
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """SYNC_MASTER also waits for a slave; a SLAVE refuses puts."""
    slave_timeout: Milliseconds = 3_000
    """Timeout of a put that waits for a slave; the message stays."""
    ha_slave_fallbehind_max: Annotated[int, Range(0)] = 256 * 1024 * 1024
    """Lag in bytes from which a slave is not considered available (5.x: haMaxGapNotInSync)."""
    in_sync_replicas: Annotated[int, Range(0)] = 0
    """Brokers, the master included, that must have a message before a SYNC_MASTER acknowledges its
    put; 0: 2, as in 4.x."""
    min_in_sync_replicas: Annotated[int, Range(1)] = 1
    """Number of available brokers, the master included, below which puts are refused."""
    enable_auto_in_sync_replicas: bool = False
    """Require only as many brokers as are available, but not fewer than minInSyncReplicas."""
    all_ack_in_sync_state_set: bool = False
    """Under a controller: all in-sync replicas must have a message before it is acknowledged and
    consumed."""
    ha_max_time_slave_not_catchup: Annotated[int, Range(1_000)] = 15_000
    """Under a controller: time in ms after which a slave that lags is in sync no longer."""
    async_learner: bool = False
    """Under a controller: this slave is never in sync, and so never elected."""
    store_path_epoch_file: str = ""
    """Path of the epochs of the log; if empty, epochFileCheckpoint in the root."""
    store_path_broker_identity: str = ""
    """Path of the id that a controller has given; if empty, brokerIdentity in the root."""

    # --- replication ---------------------------------------------------------

    ha_listen_port: Annotated[int, Range(-1, 65535)] = -1
    """Port for slaves; 0 takes any free port; -1: listenPort + 1."""
    ha_master_address: str = ""
    """Address of the master's port for slaves; if empty, the one that name servers give."""
    ha_tls_enable: bool = False
    """Use TLS between master and slaves, both of reput; RocketMQ's never do."""
    ha_send_heartbeat_interval: Annotated[int, Range(100)] = 5_000
    """Time in ms without data after which master and slave send a heartbeat."""
    ha_housekeeping_interval: Annotated[int, Range(200)] = 20_000
    """Time in ms without a word of the other side after which the connection is closed."""
    ha_transfer_batch_size: Annotated[int, Range(1024, 4 * 1024 * 1024 - 12)] = 1024 * 1024
    """Maximum bytes of the log in a frame; Java's slaves can take 4 MiB - 12."""
    ha_flow_control_enable: bool = False
    """Limit the bytes that are sent to slaves."""
    max_ha_transfer_byte_in_second: Annotated[int, Range(1024)] = 100 * 1024 * 1024
    """Bytes per second to all slaves together, with haFlowControlEnable."""
    sync_from_last_file: bool = False
    """An empty slave begins at the last file of the log, as Java's do; false: at the first."""
    ha_ack_after: DurableIn = DurableIn.MEMORY
    """A slave acknowledges bytes once they are in its memory, or on its disk."""
    ha_send_after: DurableIn = DurableIn.MEMORY
    """A master sends bytes once they are in its memory, or on its disk."""
    ha_diverged_policy: DivergedPolicy = DivergedPolicy.REFUSE
    """A slave whose log differs from its master's refuses to follow, or cuts its own log where the
    two begin to differ; the cut bytes are kept in the folder "cut"."""
    ha_force_master: bool = False
    """Start as master although another master of this name is alive. It counts at every start, so
    remove it afterwards."""
    os_page_cache_busy_time_out_mills: LongMilliseconds = 1_000
    """Duration of a put after which a broker refuses the sends that came during it: code 2,
    SYSTEM_BUSY."""

    # --- flushing the log ------------------------------------------------

    flush_interval_commit_log: Milliseconds = 500
    """Interval of checks of the log under ASYNC_FLUSH: a crash of the machine loses as much of a
    loaded log."""
    flush_commit_log_timed: bool = True
    """False, the default of 4.5: a put that completes flushCommitLogLeastPages also starts a flush,
    so that such a crash loses these pages and what comes during the flush. Disks have more work.
    """
    flush_commit_log_least_pages: Pages = 4
    """Minimum number of written pages; fewer wait for the thorough interval."""
    flush_commit_log_thorough_interval: Milliseconds = 10_000
    """After this, all written bytes are flushed: the most that a crash of the machine loses."""

    # --- the transient store pool: ASYNC_FLUSH on a master only -------------

    transient_store_pool_enable: bool = False
    """Append to separate memory, committed to the file in steps: the page cache cannot stall a
    put; a crash of the process loses uncommitted messages."""
    transient_store_pool_size: Count = 5
    """Number of buffers, each of the size of a log file, locked in memory."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    """Refuse puts while no buffer is free."""
    commit_interval_commit_log: Milliseconds = 200
    """Interval of commits."""
    commit_commit_log_least_pages: Pages = 4
    """Minimum number of written pages; fewer wait for the thorough interval."""
    commit_commit_log_thorough_interval: Milliseconds = 200
    """After this, all written bytes are committed."""
    warm_maped_file_enable: bool = False
    """Touch all pages of new log files in a thread, and lock the last two: prevents stalls."""

    # --- queues ----------------------------------------------------------

    flush_interval_consume_queue: Milliseconds = 1_000
    """Interval of checks of the queues."""
    flush_consume_queue_least_pages: Pages = 2
    """Minimum number of written pages; fewer wait for the thorough interval."""
    flush_consume_queue_thorough_interval: Milliseconds = 60_000
    """After this, all queues and the checkpoint are flushed; recovery repeats as much."""
    enable_multi_dispatch: bool = False
    """Add a message to the light queues that it names, one unit each."""
    enable_lmq: bool = False
    """Let consumers read light queues, as topics ``%LMQ%name``; with ``enableMultiDispatch``."""
    max_lmq_consume_queue_num: Annotated[int, Range(0)] = 20_000
    """Maximum number of light queues."""
    enable_calc_filter_bit_map: bool = False
    """Evaluate every group's SQL filter when a message is dispatched; requires the extension."""

    # --- index -----------------------------------------------------------

    message_index_enable: bool = True
    """Index messages by key and unique id: about 20 bytes each."""
    index_tags: bool = False
    """Index each tag as well, as 5.4 and later do; 4.9 does not. An option of reput only."""

    # --- expiry ----------------------------------------------------------

    file_reserved_time: Annotated[int, Range(0)] = 72
    """Hours after its last write for which a log file is kept."""
    delete_when: str = "04"
    """Local hours in which expired files are deleted, separated by ``;``. See ``delete_hours``."""
    clean_resource_interval: Milliseconds = 10_000
    """Interval of checks for expired files."""
    delete_commit_log_files_interval: Milliseconds = 100
    """Pause between two deletions of log files: each may keep the disk busy."""
    delete_consume_queue_files_interval: Milliseconds = 100
    """Pause between two deletions of queue files."""
    delete_file_batch_max: Count = 10
    """Maximum number of log files deleted in one round."""
    destroy_maped_file_interval_forcibly: Milliseconds = 120_000
    """Time for which a deleted file stays open for its readers."""
    redelete_hanged_file_interval: Milliseconds = 120_000
    """Time after which a failed deletion is tried again."""
    disk_max_used_space_ratio: Percent = 75
    """Percentage above which expired files are deleted at any hour. Clamped to 10..95."""
    clean_file_forcibly_enable: bool = True
    """Allow deletion of files that have not expired."""
    disk_space_clean_forcibly_ratio: Percent = 85
    """Percentage above which files are deleted before they expire. Clamped to 30..85."""
    disk_space_warning_level_ratio: Percent = 90
    """Percentage above which puts are refused, until it is no longer above
    `diskSpaceCleanForciblyRatio`. Clamped to 35..90."""
    reput_expire_only_archived: str | None = None
    """Folder of an archive: a log file is deleted only if it is there, whatever its age and however
    full the disk; unset: no such condition. An option of reput only."""

    # --- recovery --------------------------------------------------------

    reput_recovery_threads: Annotated[int, Range(0)] = 0
    """Threads that derive queues and index from a long log at the start; 0: one for each core that
    the process may use. An option of reput only."""

    # --- reading ---------------------------------------------------------

    max_transfer_bytes_on_message_in_memory: ByteCount = 256 * 1024
    """Maximum bytes of a pull, for messages that are likely in memory."""
    max_transfer_count_on_message_in_memory: Count = 32
    """Maximum messages of a pull, for messages that are likely in memory."""
    max_transfer_bytes_on_message_in_disk: ByteCount = 64 * 1024
    """Maximum bytes of a pull, for messages that are likely only on disk."""
    max_transfer_count_on_message_in_disk: Count = 8
    """Maximum messages of a pull, for messages that are likely only on disk."""
    access_message_in_memory_max_ratio: Annotated[int, Range(0, 100)] = 40
    """Percentage of the memory that is assumed to contain the end of the log."""
    max_filter_message_size: Annotated[int, Range(0)] = 16_000
    """Bytes of queue units that a filtered pull examines, if its message count is not higher."""
    max_msgs_num_batch: Count = 64
    """Maximum number of messages that a query by key returns."""
    offset_check_in_slave: bool = False
    """A slave corrects a wrong offset as a master does; otherwise it returns the requested one."""

    def __post_init__(self) -> None:
        config.check_ranges(self)
        units = -(-self.mapped_file_size_consume_queue // cq_unit.SIZE)
        self._replace("mapped_file_size_consume_queue", units * cq_unit.SIZE)
        units = -(-self.mapper_file_size_batch_consume_queue // cq_unit.BATCH_SIZE)
        self._replace("mapper_file_size_batch_consume_queue", units * cq_unit.BATCH_SIZE)
        for name, minimum, maximum in _CLAMPED:
            self._replace(name, min(max(getattr(self, name), minimum), maximum))
        if not self.store_path_root_dir:
            allowed = "a folder; the default one is in the home folder, which cannot be used"
            raise InvalidOption("storePathRootDir", "", allowed)
        room = self.mapped_file_size_commit_log - END_OF_FILE_BYTES - _SMALLEST_RECORD_BYTES
        if self.max_message_size > room:
            size = self.mapped_file_size_commit_log
            allowed = f"at most {room}, so that a record fits in a log file of {size} bytes"
            raise InvalidOption("maxMessageSize", self.max_message_size, allowed)
        archive = self.reput_expire_only_archived
        if archive is not None and ("://" in archive or not archive):
            allowed = "a folder of this machine; expiry does not wait for a network"
            raise InvalidOption("reputExpireOnlyArchived", archive, allowed)
        if self.ha_housekeeping_interval <= self.ha_send_heartbeat_interval:
            allowed = (
                f"more than haSendHeartbeatInterval, {self.ha_send_heartbeat_interval}: otherwise "
                "idle connections are closed"
            )
            raise InvalidOption("haHousekeepingInterval", self.ha_housekeeping_interval, allowed)
        if self.ha_master_address and not _ADDRESS.fullmatch(self.ha_master_address):
            allowed = "host:port of the master's port for slaves, or nothing"
            raise InvalidOption("haMasterAddress", self.ha_master_address, allowed)
        # Invalid texts are refused now, not at the first delayed message or hour.
        _ = self.delay_levels_ms, self.delete_hours

    @property
    def commit_log_folders(self) -> tuple[str, ...]:
        """The paths of the log's folders; by default one in the root."""
        default = f"{self.store_path_root_dir}/{paths.COMMIT_LOG}"
        return _folders(self.store_path_commit_log) or (default,)

    @property
    def read_only_commit_log_folders(self) -> tuple[str, ...]:
        """The folders of the log that get no new files."""
        return _folders(self.read_only_commit_log_store_paths)

    @property
    def record_bytes_max(self) -> int:
        """Maximum size of a record in bytes.

        Java's limit, but never more than fits in a log file: Java then reports success and stores
        nothing.
        """
        room = self.mapped_file_size_commit_log - END_OF_FILE_BYTES
        return min(self.max_message_size + RECORD_ROOM_BYTES, room)

    @property
    def replicas_needed(self) -> int:
        """Number of brokers that must have a message before its put is acknowledged."""
        if self.broker_role is not BrokerRole.SYNC_MASTER:
            return 1
        return self.in_sync_replicas or _IN_SYNC_REPLICAS_4X

    @property
    def memory_ratio(self) -> int:
        """Percentage of the memory whose messages are read without the disk; a slave has less."""
        ratio = self.access_message_in_memory_max_ratio
        if self.broker_role is BrokerRole.SLAVE:
            return max(ratio - _SLAVE_MEMORY_DIFFERENCE, 0)
        return ratio

    @property
    def uses_transient_store_pool(self) -> bool:
        """True if appends go to the pool: only if no put waits for the disk."""
        is_async = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        is_master = self.broker_role is not BrokerRole.SLAVE
        return self.transient_store_pool_enable and is_async and is_master

    @property
    def timer_roll_ms(self) -> int:
        """Time in ms after which a message that waits for the timer is copied.

        A third of the time for which log files are kept is left for brokers that are stopped.
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
        """Delays of the levels in ms; level 1 is the first."""
        return _levels_ms(self.message_delay_level)

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """Local hours in which expired files are deleted."""
        words = self.delete_when.split(";")
        while words and not words[-1].strip():
            words.pop()  # as in Java, nothing follows the last semicolon
        if not words or not all(re.fullmatch(r"[01]?[0-9]|2[0-3]", word.strip()) for word in words):
            raise InvalidOption("deleteWhen", self.delete_when, "hours from 00 to 23, as in 04;05")
        return tuple(int(word) for word in words)

    def _replace(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)


_SLAVE_MEMORY_DIFFERENCE = 10
"""Percentage by which accessMessageInMemoryMaxRatio is lower on a slave, as in 5.x."""
_IN_SYNC_REPLICAS_4X = 2
"""Brokers that a SYNC_MASTER of 4.x requires: itself and one slave."""
_TIMER_SLOTS_MAX = 7 * 24 * 3600 - 60
"""Number of usable slots of Java's wheel."""
_CLAMPED = (
    ("disk_max_used_space_ratio", 10, 95),
    ("disk_space_clean_forcibly_ratio", 30, 85),
    ("disk_space_warning_level_ratio", 35, 90),
)
"""Percentages that Java clamps to a range: (field, minimum, maximum)."""


def _in_home(name: str) -> str:
    home = config.home_folder()
    return "" if home is None else str(home / name)


def _folders(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@functools.lru_cache(16)
def _levels_ms(text: str) -> tuple[int, ...]:
    matches = [re.fullmatch(r"([0-9]{1,9})([smhd])", word) for word in text.split()]
    levels = tuple(int(match[1]) * _UNIT_MS[match[2]] for match in matches if match)
    if not levels or len(levels) < len(matches):
        raise InvalidOption("messageDelayLevel", text, "times such as 1s 5m 2h 1d, spaces between")
    return levels
