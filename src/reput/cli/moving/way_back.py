"""Checks of the way back: what a Java broker of a version cannot read, or does not protect."""

import re
from collections.abc import Mapping, Set as AbstractSet

from reput.broker.settings.config import BrokerSettings
from reput.broker.topic import attributes
from reput.cli.moving import features
from reput.cli.moving.findings import Findings
from reput.config import property_line
from reput.errors import CorruptRecord, InvalidOption
from reput.format import names
from reput.store.files import paths
from reput.store.queues import tombstones
from reput.store.reader import Condition, StoreReader

Version = tuple[int, ...]

TESTED = ((4, 5), (4, 9), (5, 5))
"""Versions that open stores of reput in tests."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OURS = _words("""
    fastPortEnable grpcServerPort haAckAfter haDivergedPolicy haForceMaster haSendAfter haTlsEnable
    indexTags metricsPort pullHoldMax rebalanceLockMaxLiveTime""")
"""Keys of reput alone, besides the ones with the prefix ``reput``."""
SINCE_4_9 = _words("""
    enableLmq enableMultiDispatch maxLmqConsumeQueueNum readOnlyCommitLogStorePaths slaveTimeout
    storeReplyMessageEnable""")
"""Keys of 4.9.7 that 4.5.2 does not know."""
SINCE_5 = _words("""
    allAckInSyncStateSet asyncLearner brokerElectionPriority brokerHeartbeatInterval
    controllerAddr controllerHeartBeatTimeoutMills enableControllerMode haMaxTimeSlaveNotCatchup
    storePathBrokerIdentity storePathEpochFile
    allowRecallWhenBrokerNotWriteable authenticationEnabled authenticationMetadataProvider
    authenticationProvider authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist autoMessageVersionOnTopicLen bindAddress channelExpiredTimeout
    clearRetryTopicWhenDeleteTopic configBlackList defaultMessageRequestMode
    defaultPopShareQueueNum deleteFileBatchMax diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio enableAutoInSyncReplicas enableMixedMessageType enableRetryTopicV2
    enabledAppendPropCRC liteSubscriptionCheckTimeoutMills liteTtlCheckInterval
    maxLiteSubscriptionCount haFlowControlEnable haMaxGapNotInSync inSyncReplicas
    initAuthenticationUser
    innerClientAuthenticationCredentials mapperFileSizeBatchConsumeQueue maxFilterMessageSize
    maxHaTransferByteInSecond maxPopPollingSize maxTopicLength metricsExporterType metricsLabel
    metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled
    minInSyncReplicas popFromRetryProbability popFromRetryProbabilityForPriority priorityOrderAsc
    recallMessageEnable retrieveMessageFromPopRetryTopicV1 reviveQueueNum
    serverLoadBalancerEnable syncFromLastFile timerCongestNumEachSlot timerMaxDelaySec
    timerPrecisionMs timerRollWindowSlot timerStopEnqueue timerWheelEnable
    useServerSideResetOffset validateSystemTopicWhenUpdateTopic""")
"""Keys of 5.5.0 that 4.9.7 does not know."""
UNTIL_4_9 = _words("haSlaveFallbehindMax")
"""Keys of 4.9.7 that 5.5.0 does not know."""

_ACCESS_1_ENDED: Version = (5, 3, 3)
_ACCESS_2_BEGAN: Version = (5, 3)
_PRIORITIES_BEGAN: Version = (5, 4)
_FILES_OF_REPUT = (
    paths.QUEUE_SUMMARY,
    paths.KNOWN_QUEUES,
    paths.BULK_APPENDS,
    paths.TIMER_PROGRESS,
    paths.CUT_BYTES,
)


def parse_version(text: str) -> Version:
    """Return the numbers of a version of RocketMQ.

    Raises:
        InvalidOption: It is none from 4.5 to 5.5.
    """
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", text):
        version = tuple(map(int, text.split(".")))
        if TESTED[0] <= version[:2] <= TESTED[-1]:
            return version
    raise InvalidOption("--for-java", text, "a version of RocketMQ from 4.5 to 5.5, as 5.5.0")


def check(
    reader: StoreReader | None,
    settings: BrokerSettings,
    given: Mapping[str, str],
    version: Version,
) -> Findings:
    """Check what a Java broker would make of a store and of its settings.

    Args:
        reader: The store; None without one.
        settings: Settings with which reput runs on it.
        given: Keys and values of broker.conf.
        version: Version of the Java broker.
    """
    findings = Findings("way back")
    if version[:2] not in TESTED:
        tested = ", ".join(".".join(map(str, numbers)) for numbers in TESTED)
        findings.warn(
            "version",
            f"{_text(version)} is not tested with stores of reput; {tested} are",
            "try it with a copy of the folder first",
        )
    _check_settings(given, version, findings)
    _check_access(settings, version, findings)
    if reader is not None:
        try:
            _check_topics(reader, version, findings)
            _check_waiting(reader, version, findings)
        except CorruptRecord as error:
            findings.stop("tables", str(error), "repair this file, or restore it from a backup")
        _check_files(reader, version, findings)
    return findings


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def unknown_keys(keys: AbstractSet[str], version: Version) -> list[str]:
    """Return the settings of reput that a Java broker of a version ignores, sorted."""
    unknown = {key for key in keys if key.startswith("reput") or key in OURS}
    unknown |= keys & (SINCE_5 if version < (5,) else UNTIL_4_9)
    if version < (4, 9):
        unknown |= keys & SINCE_4_9
    return sorted(unknown)


def _check_settings(given: Mapping[str, str], version: Version, findings: Findings) -> None:
    unknown = unknown_keys(given.keys(), version)
    if unknown:
        findings.warn(
            "settings",
            f"{_text(version)} ignores {', '.join(unknown)}",
            "check that the broker may run without them",
        )
    else:
        findings.ok("settings", f"{_text(version)} knows every key of broker.conf that reput obeys")
    if given.get("indexTags", "").lower() == "true" and version < _PRIORITIES_BEGAN:
        findings.ok("index", "entries of tags stay unused")


def _check_access(settings: BrokerSettings, version: Version, findings: Findings) -> None:
    if settings.broker.acl_enable and version >= _ACCESS_1_ENDED:
        line = property_line("migrateAuthFromV1Enabled", "true").strip()
        findings.stop(
            "access control 1.0",
            f"{_text(version)} has only access control 2.0: it would serve everyone",
            f"set authenticationEnabled=true, authorizationEnabled=true and {line}",
        )
    if not settings.access.authentication_enabled:
        return
    if version < _ACCESS_2_BEGAN:
        findings.stop(
            "access control 2.0",
            f"{_text(version)} does not have it: it would serve everyone",
            "use accounts of access control 1.0 (aclEnable), or a version from 5.3 on",
        )
    else:
        findings.warn(
            "access control 2.0",
            f"Java keeps users and rules in RocksDB, and does not read {paths.USERS}",
            "keep initAuthenticationUser, and copy them from the running reput to Java with "
            "mqadmin copyUser and copyAcl; users from before the move have their old passwords",
        )


# --- what 4.x does not know ---------------------------------------------------------------------


def _check_topics(reader: StoreReader, version: Version, findings: Findings) -> None:
    topics = reader.topics()
    if version < (5,):
        long_names = [name for name in topics if len(name.encode()) > names.TOPIC_LENGTH_MAX]
        if long_names:
            findings.stop(
                "long topics",
                f"{_text(version)} cannot read the records of {names.printable(long_names[0])}",
                "stay with 5.x as long as such messages are in the log",
            )
        batches = [*reader.batch_queue_ids]
        if batches:
            findings.stop(
                "batch queues",
                f"{_text(version)} does not have them, as {batches[0]}",
                "let all groups read these topics, and delete them",
            )
        with_attributes = [name for name, topic in topics.items() if topic.attributes]
        if with_attributes:
            findings.warn(
                "attributes",
                f"{_text(version)} drops those of {len(with_attributes)} topics",
                "note them, to set them again later: reput topic show",
            )
    if version < _PRIORITIES_BEGAN:
        ranked = [
            name
            for name, topic in topics.items()
            if dict(topic.attributes).get(attributes.MESSAGE_TYPE, "").upper() == "PRIORITY"
        ]
        if ranked:
            findings.warn(
                "priorities",
                f"{_text(version)} has none: {ranked[0]} becomes a topic of equal queues",
                "accept it, or stay with 5.4 or later",
            )
    light = [name for name in reader.queue_ids if names.is_light(name)]
    if light and version < (4, 9):
        findings.warn(
            "light queues",
            f"{_text(version)} does not write to {len(light)} light queues",
            "stay with 4.9 or later",
        )


def _check_waiting(reader: StoreReader, version: Version, findings: Findings) -> None:
    counts = features.waiting(reader)
    texts = [f"{count} for {what}" for what, count in counts.items() if count]
    if texts:
        findings.ok("waiting messages", f"at most {', '.join(texts)}")
    lost = [what for what in ("the timer", "an acknowledgement of a pop") if counts[what]]
    if version < (5,):
        for what in lost:
            findings.stop(
                "waiting messages",
                f"at most {counts[what]} wait for {what}, which {_text(version)} does not know: "
                "it never delivers them",
                "wait until they have been delivered: reput broker stats",
            )
        popped = _pop_retry_topics(reader)
        if popped:
            findings.warn(
                "pop retries",
                f"messages of {popped[0]} are read by pops only",
                "let the groups pop until these topics are empty",
            )
    elif counts["the timer"]:
        findings.warn(
            "timer",
            "Java may deliver some of them twice; none is lost",
            "wait until they have been delivered, if consumers cannot bear it",
        )


def _pop_retry_topics(reader: StoreReader) -> list[str]:
    """Return the retry topics of pops: their names are those of a group and a topic."""
    topics, groups = reader.topics(), reader.subscription_groups()

    def is_of_pops(rest: str) -> bool:
        return "+" in rest or any(
            sign == "_" and rest[:place] in groups and rest[place + 1 :] in topics
            for place, sign in enumerate(rest)
        )

    return [
        name
        for name in reader.queue_ids
        if names.is_retry_topic(name) and is_of_pops(name.removeprefix(names.RETRY_PREFIX))
    ]


# --- files --------------------------------------------------------------------------------------


def _check_files(reader: StoreReader, version: Version, findings: Findings) -> None:
    folder = reader.folder
    if reader.state.condition is Condition.CRASHED and version >= (5,):
        findings.warn(
            "index",
            "after a crash 5.x drops the last index file, and makes again only its end",
            "start reput once more and stop it with SIGTERM, or set messageIndexSafe=true",
        )
    deleted = tombstones.read(folder)
    if deleted:
        findings.warn(
            "deleted topics",
            f"messages of {len(deleted)} deleted topics are still in the log, and Java may show "
            "them again if it makes queues again",
            "delete these topics again on the Java broker if they appear",
        )
    own = [path for path in _FILES_OF_REPUT if folder.entry(path) is not None]
    if own:
        findings.ok("files of reput", f"{', '.join(own)}: Java ignores them")
