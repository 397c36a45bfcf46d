"""Keys of broker.conf that RocketMQ has and this broker does not need, each with the reason.

They belong to Java's ``BrokerConfig``, ``NettyServerConfig``, ``NettyClientConfig`` and
``AuthConfig``, 4.5 to 5.5. The keys of the store are in ``reput.store.config``.
"""

from collections.abc import Mapping


def _keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


ACCEPTED_WITHOUT_EFFECT: Mapping[str, str] = _keys_by_reason(
    {
        "one thread serves all connections": """
            sendMessageThreadPoolNums pullMessageThreadPoolNums litePullMessageThreadPoolNums
            ackMessageThreadPoolNums processReplyMessageThreadPoolNums queryMessageThreadPoolNums
            adminBrokerThreadPoolNums clientManageThreadPoolNums consumerManageThreadPoolNums
            loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
            putMessageFutureThreadPoolNums recoverThreadPoolNums recoverConcurrently
            asyncSendEnable serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
            serverNettyWorkerGroupEnable clientWorkerThreads clientCallbackExecutorThreads
            disableCallbackExecutor disableNettyWorkerGroup enableFastChannelEventProcess""",
        "requests are not queued": """
            sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity
            litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity
            replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
            clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
            heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity
            adminBrokerThreadPoolQueueCapacity loadBalanceThreadPoolQueueCapacity
            waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue waitTimeMillsInHeartbeatQueue
            waitTimeMillsInTransactionQueue waitTimeMillsInAckQueue
            waitTimeMillsInAdminBrokerQueue serverOnewaySemaphoreValue serverAsyncSemaphoreValue
            clientOnewaySemaphoreValue clientAsyncSemaphoreValue""",
        "buffers and sockets use the system's defaults": """
            serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
            writeBufferHighWaterMark writeBufferLowWaterMark serverPooledByteBufAllocatorEnable
            clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable
            useEpollNativeSelector transferMsgByHeap""",
        "connections to name servers are opened when needed and reopened when lost": """
            connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds
            clientCloseSocketIfTimeout scanAvailableNameSrv
            maxReconnectIntervalTimeSeconds enableReconnectForGoAway""",
        "a stop answers pending requests and waits for nothing else": """
            enableShutdownGracefully shutdownWaitTimeSeconds""",
        "nothing is read from that path": "brokerConfigPath",
        "all topics are registered together; between two periods only changes": """
            forceRegister compressedRegister enableSplitRegistration splitRegistrationSize
            enableSingleTopicRegister compatibleWithOldNameSrv enableSplitMetadata
            splitMetadataSize""",
        "name servers are those of namesrvAddr": """
            fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval updateNameServerAddrPeriod
            loadBalancePollNameServerInterval""",
        "each heartbeat also asks the leading controller for the master": """
            syncBrokerMetadataPeriod syncControllerMetadataPeriod sendHeartbeatTimeoutMillis""",
        "the in-sync set is checked ten times a second": "checkSyncStateSetPeriod",
        "a slave never replaces its master without a controller": """
            syncBrokerMemberGroupPeriod forwardTimeout brokerNotActiveTimeoutMillis""",
        "controllers are those of controllerAddr": "fetchControllerAddrByDnsLookup",
        "RocketMQ has no filter servers since 4.2": "filterServerNums",
        "metrics are scraped: metricsPort, metricsExporterType=PROM": """
            metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
            metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
            metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta""",
        "reputMetricsNames is the limit of series": "metricsOtelCardinalityLimit",
        "metrics are served together": """
            enableDetailStat autoDeleteUnusedStats maxStatsIdleTimeInMinutes accountStatsEnable
            accountStatsPrintZeroValues enableLmqStats commercialEnable commercialTimerCount
            commercialTransCount commercialBigCount commercialBaseCount commercialSizePerMsg
            enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics
            enablePopMetrics enableRemotingMetrics enableRequestMetrics enableStatsMetrics
            enableTransactionMetrics estimateAccumulation liteLagCountMetricsEnable
            liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
            transactionMetricFlushInterval""",
        "logs go to stderr": """
            isolateLogEnable printChannelGroups printChannelGroupsMinNum enableLitePopLog
            enablePopLog popConsumerKVServiceLog""",
        "a group that lags is never disabled": """
            disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold""",
        "reads from disk do not slow down other requests": """
            coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
            enableNetWorkFlowControl""",
        "offsets are saved completely, when they have changed": """
            flushConsumerOffsetHistoryInterval consumerOffsetUpdateVersionStep
            delayOffsetUpdateVersionStep persistConsumerOffsetIncrementally""",
        "tables are files, not in RocksDB": """
            configManagerVersion useSingleRocksDBForAllConfigs""",
        "producers and system groups are always registered": """
            enableRegisterProducer enableCreateSysGroup""",
        "subscriptions come from clients": """
            useStaticSubscription subscriptionExpiredTimeout""",
        "members are notified of each change at once": "realTimeNotifyConsumerChange",
        "acks of pops are in memory, and saved every second": """
            appendAckAsync appendCkAsync enablePopBatchAck enablePopBufferMerge
            popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
            popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
            enableSkipLongAwaitingAck reviveAckWaitMs""",
        "due messages are delivered again at once, without a limit of attempts": """
            popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
            popReviveSkipIfGroupAbsent reviveInterval reviveMaxSlow reviveScanTime
            skipWhenCKRePutReachMaxTimes""",
        "pops are held and retried in one way": """
            enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
            enablePopMessageThreshold initPopOffsetByCheckMsgInMem
            maxMessageFilterNumForNotification
            popInflightMessageThreshold popLongPollingForceNotifyInterval
            popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize
            popResponseReturnActualRetryTopic
            useMessageFilterForNotification useSeparateRetryQueue""",
        "messages of lite topics wait for each of their clients": """
            enableLiteEventMode liteEventCheckInterval liteEventFullDispatchDelayTime
            liteEventFullDispatchDelayTimeForWildcardGroup liteSubscriptionCheckInterval
            maxClientEventCount""",
        "a lite topic is kept for 15 minutes after its last message at least": "minLiteTTl",
        "proxies, which store offsets of broadcasts, are not supported": """
            enableBroadcastOffsetStore broadcastOffsetExpireSecond
            broadcastOffsetExpireMaxSecond""",
        "each decision about a half message has a separate op message, as 4.9 requires": """
            transactionOpBatchInterval transactionOpMsgMaxSize""",
        "half messages are never kept in RocksDB": """
            transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
            transactionCheckRocksdbQueueCapacity""",
        "RocketMQ ignores them, too": """
            highSpeedMode maxDelayTime cleanOfflineBrokerInterval""",
        "users and rules are in memory, and their files in config/": """
            authConfigPath configName clusterName userCacheMaxNum userCacheExpiredSecond
            userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond aclCacheRefreshSecond
            statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond
            statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond""",
    }
)
"""Keys of RocketMQ that have no effect here, each with the reason."""

ONLY: Mapping[str, tuple[str, str]] = {
    "socksProxyConfig": ("{}", "proxies are not supported"),
    "enableSlaveActingMaster": ("false", "a slave never replaces its master"),
    "enableRemoteEscape": ("false", "a slave never replaces its master"),
    "skipPreOnline": ("false", "a slave never replaces its master"),
    "lockInStrictMode": ("false", "queues are locked by this broker alone"),
    "inBrokerContainer": ("false", "a process has one broker; start several processes"),
    "messageStorePlugIn": ("", "plug-ins are Java classes"),
    "fetchNamesrvAddrByAddressServer": ("false", "set the name servers in namesrvAddr"),
    "filterSupportRetry": ("false", "a retried message has already passed the filter"),
    "rejectPullConsumerEnable": ("false", "every kind of consumer may pull"),
    "litePullMessageEnable": ("true", "every kind of consumer may pull"),
    "startAcceptSendRequestTimeStamp": ("0", "messages are accepted from the start on"),
}
"""Keys with a single allowed value: this broker does not support others."""

REPLICATION_DEFAULTS: Mapping[str, str] = {
    "brokerNotActiveTimeoutMillis": "10000",
    "checkSyncStateSetPeriod": "5000",
    "compatibleWithOldNameSrv": "true",
    "disappearTimeAfterStart": "-1",
    "duplicationEnable": "false",
    "enableRemoteEscape": "false",
    "enableSlaveActingMaster": "false",
    "fetchControllerAddrByDnsLookup": "false",
    "forwardTimeout": "3000",
    "lockInStrictMode": "false",
    "maxChecksumRange": str(1 << 30),
    "maxSlaveResendLength": str(256 << 20),
    "sendHeartbeatTimeoutMillis": "1000",
    "skipPreOnline": "false",
    "syncBrokerMemberGroupPeriod": "1000",
    "syncBrokerMetadataPeriod": "5000",
    "syncControllerMetadataPeriod": "10000",
    "syncMasterFlushOffsetWhenStartup": "false",
    "totalReplicas": "1",
}
"""Keys of replication in 5.x that have no effect here -> RocketMQ's default, which is reported."""
