"""Store settings: Java's names, Java's defaults, Java's interpretation of a broker.conf."""

import dataclasses

import pytest

import seeds
from interop.java_oracle import JavaError, Oracle
from reput import config
from reput.errors import InvalidOption
from reput.store.config import ACCEPTED_WITHOUT_EFFECT, ONLY, StoreConfig

pytestmark = pytest.mark.interop

STORE_CONFIG = "org.apache.rocketmq.store.config.MessageStoreConfig"
BROKER_CONFIG = "org.apache.rocketmq.common.BrokerConfig"

OF_THE_BROKER = {
    "enableCalcFilterBitMap",
    "expectConsumerNumUseFilter",
    "maxErrorRateOfBloomFilter",
    "flushConsumerOffsetInterval",
}
"""Settings of our store that belong to BrokerConfig in Java; broker.conf has both kinds."""

OURS = {
    "haAckAfter",
    "haDivergedPolicy",
    "haForceMaster",
    "haMasterAddress",  # Java null, which means the same as our empty text
    "haListenPort",  # Java's port does not follow listenPort by a default, but in its start
    "haSendAfter",
    "haTlsEnable",
    "haTransferBatchSize",  # Java 32 KiB; its slaves take 4 MiB
    "inSyncReplicas",  # Java 1, also for a SYNC_MASTER: it does not wait
    "indexTags",
    "reputExpireOnlyArchived",
    "reputRecoveryThreads",
    "storePathBrokerIdentity",  # Java's path; ours is empty, which means the same
    "storePathEpochFile",
}
"""Keys that Java lacks, or whose default differs on purpose. 5.4 and later always index tags, 4.x
never; Java has no archives, and one thread for its recovery."""

SINCE_5 = {
    "allAckInSyncStateSet",
    "asyncLearner",
    "haMaxTimeSlaveNotCatchup",
    "enableAutoInSyncReplicas",
    "haFlowControlEnable",
    "maxHaTransferByteInSecond",
    "minInSyncReplicas",
    "syncFromLastFile",
    "totalReplicas",
    "autoMessageVersionOnTopicLen",
    "deleteFileBatchMax",  # 4.x: the same ten, fixed
    "diskSpaceCleanForciblyRatio",  # 4.x: a system property, of the same value
    "diskSpaceWarningLevelRatio",  # likewise
    "enabledAppendPropCRC",
    "mapperFileSizeBatchConsumeQueue",
    "maxFilterMessageSize",  # 4.x: the same bytes, fixed
    "maxTopicLength",  # 4.x: the same 127, fixed
    "timerCongestNumEachSlot",
    "timerMaxDelaySec",
    "timerPrecisionMs",
    "timerRollWindowSlot",
    "timerStopEnqueue",
    "timerWheelEnable",
}
SINCE_4_9 = {
    "enableLmq",
    "enableMultiDispatch",
    "maxLmqConsumeQueueNum",
    "readOnlyCommitLogStorePaths",
    "flushCommitLogTimed",  # 4.5: false
    "slaveTimeout",  # 4.5: syncFlushTimeout was the limit of waiting for a slave
}
KEYS = {config.key_of(field.name): field.name for field in dataclasses.fields(StoreConfig)}


def settings(oracle: Oracle, text: str = "", name: str = STORE_CONFIG) -> dict[str, str]:
    """Return the values of Java's getters after a broker.conf."""
    values = oracle.ask_one("settings", name, text)
    assert isinstance(values, dict)
    return values


def ours(text: str = "") -> dict[str, str]:
    """Return our values after the same file, in Java's notation."""
    value = config.load(StoreConfig, config.parse_properties(text)).value
    return {key: java_text(getattr(value, name)) for key, name in KEYS.items()}


def java_text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def expected_keys(version: str) -> set[str]:
    keys = set(KEYS) - OURS
    if version.startswith("4."):
        keys -= SINCE_5
    if version == "4.5.2":
        keys -= SINCE_4_9
    return keys


def java_defaults(oracle: Oracle) -> dict[str, str]:
    """Return Java's defaults, with our root folder for Java's home, and an unset log path."""
    values = settings(oracle) | {
        key: value
        for key, value in settings(oracle, name=BROKER_CONFIG).items()
        if key in OF_THE_BROKER
    }
    root = StoreConfig().store_path_root_dir
    assert values["storePathCommitLog"] == values["storePathRootDir"] + "/commitlog"
    return values | {"storePathRootDir": root, "storePathCommitLog": "null"}


def test_every_default_equals_that_of_java(table_oracle: Oracle) -> None:
    java = java_defaults(table_oracle)
    version = table_oracle.version
    mine = {key: value for key, value in ours().items() if key in expected_keys(version)}
    if version.startswith("5."):
        assert java.pop("haMaxGapNotInSync") == mine.pop("haSlaveFallbehindMax")
    assert mine == {key: java[key] for key in mine}


def test_every_key_of_java_is_accepted(table_oracle: Oracle) -> None:
    java = set(settings(table_oracle))
    known = {*KEYS, *ACCEPTED_WITHOUT_EFFECT, *ONLY, *StoreConfig.keys.renamed}
    assert java <= known


def test_fixed_settings_equal_the_defaults_of_java(table_oracle: Oracle) -> None:
    java = settings(table_oracle)
    assert {key: java[key] for key in ONLY if key in java} == {
        key: accepted for key, (accepted, _) in ONLY.items() if key in java
    }


def test_ignored_keys_are_keys_of_java(table_oracle: Oracle) -> None:
    """Each ignored key is a key of 4.9 or 5.5."""
    if table_oracle.version == "5.5.0":
        java = set(settings(table_oracle)) | OF_THE_BROKER
        assert set(ACCEPTED_WITHOUT_EFFECT) | set(ONLY) <= java


@pytest.mark.parametrize(
    "text",
    [
        "mappedFileSizeConsumeQueue=1",
        "mappedFileSizeConsumeQueue=1000001",
        "diskMaxUsedSpaceRatio=3",
        "diskMaxUsedSpaceRatio=200",
        "flushDiskType=SYNC_FLUSH\nbrokerRole=SLAVE",
        "fileReservedTime = 48\ndeleteWhen : 04;05",
        "cleanFileForciblyEnable=FALSE\nwarmMapedFileEnable=True",
        "osPageCacheBusyTimeOutMills=3000000000",
        "mappedFileSizeCommitLog=65536\nmaxMessageSize=40960\nmaxIndexNum=+300",
        "storePathRootDir=/x\nstorePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/a",
        "messageDelayLevel=1s 2s \\\n   3s",
    ],
)
def test_java_reads_equal_values_from_a_broker_conf(table_oracle: Oracle, text: str) -> None:
    if table_oracle.version == "4.5.2" and "readOnly" in text:
        return
    java = settings(table_oracle, text)
    mine = ours(text)
    for key in config.parse_properties(text):
        assert mine[key] == java[key]


def test_the_log_folder_follows_the_root_as_in_java(table_oracle: Oracle) -> None:
    if table_oracle.version == "4.5.2":
        return  # there it stayed below the home
    java = settings(table_oracle, "storePathRootDir=/x")
    mine = config.load(StoreConfig, {"storePathRootDir": "/x"}).value
    assert mine.commit_log_folders == (java["storePathCommitLog"],)


# --- java.util.Properties ----------------------------------------------------

ALPHABET = "ab1 =:#!\\\\\\\n\n\r\t\f,;u"


def test_properties_of_random_texts_are_equal(table_oracle: Oracle) -> None:
    """Results are equal except for the empty key, which Java sets for a backslash at the end."""
    random = seeds.random("store config", 1)
    texts = [
        "".join(random.choices(ALPHABET, k=random.randrange(60)))
        for _ in range(table_oracle.size(5000))
    ]
    texts += [
        "a=\\u65e5\\u672C",
        "a=\\ud83d\\ude00",
        "\\u0061 = \\u000a",
        "a=1\\",
        "a=1\\\n",
        "\\\n#b",
        "a\\ b=c",
    ]
    for text in texts:
        try:
            expected = table_oracle.ask_one("properties", text)
        except JavaError:
            with pytest.raises(InvalidOption):
                config.parse_properties(text)
        else:
            parsed = config.parse_properties(text)
            assert {**parsed, "": None} == {**expected, "": None}, repr(text)
