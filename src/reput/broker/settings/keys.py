"""Keys of broker.conf that RocketMQ has and the broker here does not need, each with the reason.

They are those of Java's ``BrokerConfig``, ``NettyServerConfig``, ``NettyClientConfig`` and
``AuthConfig``, 4.5 to 5.5. The store's are in ``reput.store.config``.
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
        "requests do not wait in a queue": """
            sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity
            litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity
            replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
            clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
            heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity
            adminBrokerThreadPoolQueueCapacity loadBalanceThreadPoolQueueCapacity
            maxClientEventCount brokerFastFailureEnable waitTimeMillsInSendQueue
            waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue waitTimeMillsInHeartbeatQueue
            waitTimeMillsInTransactionQueue waitTimeMillsInAckQueue
            waitTimeMillsInAdminBrokerQueue serverOnewaySemaphoreValue serverAsyncSemaphoreValue
            clientOnewaySemaphoreValue clientAsyncSemaphoreValue""",
        "buffers and sockets are as the system has them": """
            serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
            writeBufferHighWaterMark writeBufferLowWaterMark serverPooledByteBufAllocatorEnable
            clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable
            useEpollNativeSelector transferMsgByHeap""",
        "a connection to a name server is made when it is needed and again when it is lost": """
            connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds
            clientCloseSocketIfTimeout scanAvailableNameSrv
            maxReconnectIntervalTimeSeconds enableReconnectForGoAway""",
        "a stop answers what was asked before and waits for nothing else": """
            enableShutdownGracefully shutdownWaitTimeSeconds""",
        "nothing is read from there": "rocketmqHome brokerConfigPath",
        "all topics are told in one piece; between two periods a change is told alone": """
            forceRegister compressedRegister enableSplitRegistration splitRegistrationSize
            enableSingleTopicRegister skipPreOnline compatibleWithOldNameSrv enableSplitMetadata
            splitMetadataSize""",
        "name servers are those of namesrvAddr": """
            fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval updateNameServerAddrPeriod
            loadBalancePollNameServerInterval""",
        "replication between brokers is not here": """
            brokerIP2 slaveReadEnable syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
            brokerElectionPriority enableRemoteEscape forwardTimeout""",
        "there is no controller here (enableControllerMode is refused)": """
            controllerAddr controllerHeartBeatTimeoutMills checkSyncStateSetPeriod
            syncControllerMetadataPeriod fetchControllerAddrByDnsLookup brokerHeartbeatInterval
            brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis""",
        "filter servers ended with RocketMQ 4.2": "filterServerNums",
        "what is counted is at metricsPort": """
            enableDetailStat autoDeleteUnusedStats maxStatsIdleTimeInMinutes accountStatsEnable
            accountStatsPrintZeroValues enableLmqStats commercialEnable commercialTimerCount
            commercialTransCount commercialBigCount commercialBaseCount commercialSizePerMsg
            metricsExporterType metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
            metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
            metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
            metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
            enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics
            enablePopMetrics enableRemotingMetrics enableRequestMetrics enableStatsMetrics
            enableTransactionMetrics estimateAccumulation liteLagCountMetricsEnable
            liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
            transactionMetricFlushInterval""",
        "logs go to stderr": """
            isolateLogEnable printChannelGroups printChannelGroupsMinNum enableLitePopLog
            enablePopLog popConsumerKVServiceLog""",
        "a group that is behind is never cut off": """
            disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold""",
        "reading from disk slows nobody else down": """
            coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
            enableNetWorkFlowControl""",
        "offsets are saved whole, when they have changed": """
            flushConsumerOffsetHistoryInterval consumerOffsetUpdateVersionStep
            delayOffsetUpdateVersionStep persistConsumerOffsetIncrementally""",
        "tables are files, not in RocksDB": """
            configManagerVersion useSingleRocksDBForAllConfigs""",
        "producers and the groups of the system are always known": """
            enableRegisterProducer enableCreateSysGroup""",
        "nobody else has queues to lock": "lockInStrictMode",
        "clients say themselves what they subscribe to": """
            useStaticSubscription subscriptionExpiredTimeout""",
        "members are told of each change at once": "realTimeNotifyConsumerChange",
        "pop keeps acks in memory, and saves them every second": """
            appendAckAsync appendCkAsync enablePopBatchAck enablePopBufferMerge
            popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
            popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
            enableSkipLongAwaitingAck reviveAckWaitMs""",
        "what is due is popped again at once, for as long as it takes": """
            popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
            popReviveSkipIfGroupAbsent reviveInterval reviveMaxSlow reviveScanTime
            skipWhenCKRePutReachMaxTimes""",
        "pop waits and retries in one way here": """
            enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
            enablePopMessageThreshold initPopOffsetByCheckMsgInMem
            maxMessageFilterNumForNotification
            popInflightMessageThreshold popLongPollingForceNotifyInterval
            popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize
            popResponseReturnActualRetryTopic
            useMessageFilterForNotification useSeparateRetryQueue""",
        "there are no light topics of 5.5 here": """
            enableLiteEventMode liteEventCheckInterval liteEventFullDispatchDelayTime
            liteEventFullDispatchDelayTimeForWildcardGroup liteSubscriptionCheckInterval
            liteSubscriptionCheckTimeoutMills liteTtlCheckInterval maxLiteSubscriptionCount
            minLiteTTl""",
        "there are no proxies that keep offsets of broadcasts here": """
            enableBroadcastOffsetStore broadcastOffsetExpireSecond
            broadcastOffsetExpireMaxSecond""",
        "each decision about a half message is an op message of its own, as 4.9 reads them": """
            transactionOpBatchInterval transactionOpMsgMaxSize""",
        "half messages are never kept in RocksDB": """
            transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
            transactionCheckRocksdbQueueCapacity""",
        "RocketMQ does not read them either": """
            highSpeedMode maxDelayTime cleanOfflineBrokerInterval""",
        "there is no authentication here (what would switch it on is refused)": """
            authConfigPath configName clusterName initAuthenticationUser
            innerClientAuthenticationCredentials authenticationProvider
            authenticationMetadataProvider authenticationStrategy authenticationWhitelist
            authorizationProvider authorizationMetadataProvider authorizationStrategy
            authorizationWhitelist migrateAuthFromV1Enabled userCacheMaxNum
            userCacheExpiredSecond userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond
            aclCacheRefreshSecond statefulAuthenticationCacheMaxNum
            statefulAuthenticationCacheExpiredSecond statefulAuthorizationCacheMaxNum
            statefulAuthorizationCacheExpiredSecond""",
    }
)
"""Keys that RocketMQ has and that change nothing here, each with the reason."""

_NO_AUTH = "there is no authentication here: keep others out with a firewall"
_NO_CONTROLLER = "there is no controller here: name a master and its slaves yourself"

ONLY: Mapping[str, tuple[str, str]] = {
    "aclEnable": ("false", _NO_AUTH),
    "authenticationEnabled": ("false", _NO_AUTH),
    "authorizationEnabled": ("false", _NO_AUTH),
    "useTLS": ("false", "connections are not encrypted here"),
    "socksProxyConfig": ("{}", "name servers are reached directly"),
    "enableControllerMode": ("false", _NO_CONTROLLER),
    "enableSlaveActingMaster": ("false", "a slave never stands in for its master here"),
    "inBrokerContainer": ("false", "a process has one broker; start as many as you need"),
    "messageStorePlugIn": ("", "plug-ins are Java classes"),
    "fetchNamesrvAddrByAddressServer": ("false", "name the name servers in namesrvAddr"),
    "filterSupportRetry": ("false", "a retried message was taken by the filter before"),
    "rejectPullConsumerEnable": ("false", "every kind of consumer may pull"),
    "litePullMessageEnable": ("true", "every kind of consumer may pull"),
    "startAcceptSendRequestTimeStamp": ("0", "messages are taken from the start on"),
}
"""Keys that must be left as they are: what else they can be, this broker would not do."""
