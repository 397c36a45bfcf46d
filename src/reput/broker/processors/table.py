"""Request code to function: the complete protocol of the broker.

A processor decodes the header, calls the parts, and encodes the reply. It returns None if the reply
is sent later, or never. An exception becomes the reply: its ``response_code`` and text.

A processor whose work grows with the broker's contents (topics, groups, queues, connections) is a
generator: it yields at least once a millisecond so that other requests are served, and returns the
reply. It iterates over copies: anything may change while it pauses.
"""

from collections.abc import Mapping

from reput.broker.processors import (
    access,
    assignment,
    clients,
    configuration,
    expressions,
    groups,
    ha,
    lite,
    offset_resets,
    offsets,
    plain_access,
    pop,
    pop_ack,
    pull,
    queries,
    replicas,
    reply,
    send,
    send_back,
    statistics,
    subscription_groups,
    timer,
    topics,
    transactions,
)
from reput.format.codes import RequestCode as Code

_PULL = expressions.compiling(pull.pull_message, "expressionType", "subscription")

PROCESSORS: Mapping[int, expressions.Processor] = {
    # sending
    Code.SEND_MESSAGE: send.send_message,
    Code.SEND_MESSAGE_V2: send.send_message,
    Code.SEND_BATCH_MESSAGE: send.send_batch,
    Code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
    Code.SEND_REPLY_MESSAGE: reply.send_reply_message,
    Code.SEND_REPLY_MESSAGE_V2: reply.send_reply_message,
    Code.END_TRANSACTION: transactions.end_transaction,
    Code.RESUME_CHECK_HALF_MESSAGE: transactions.resume_check,
    Code.RECALL_MESSAGE: timer.recall_message,
    # receiving
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.POP_MESSAGE: expressions.compiling(pop.pop_message, "expType", "exp"),
    Code.PEEK_MESSAGE: pop.peek_message,
    Code.NOTIFICATION: pop.notification,
    Code.POLLING_INFO: pop.polling_info,
    Code.ACK_MESSAGE: pop_ack.ack_message,
    Code.BATCH_ACK_MESSAGE: pop_ack.batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: pop_ack.change_invisible_time,
    Code.POP_ROLLBACK: pop_ack.roll_back,
    Code.POP_LITE_MESSAGE: lite.pop_lite,
    Code.LITE_SUBSCRIPTION_CTL: lite.change_subscriptions,
    Code.GET_BROKER_LITE_INFO: lite.broker_info,
    Code.GET_PARENT_TOPIC_INFO: lite.parent_info,
    Code.GET_LITE_TOPIC_INFO: lite.topic_info,
    Code.GET_LITE_CLIENT_INFO: lite.client_info,
    Code.GET_LITE_GROUP_INFO: lite.group_info,
    Code.TRIGGER_LITE_DISPATCH: lite.dispatch_again,
    Code.QUERY_ASSIGNMENT: assignment.query_assignment,
    Code.SET_MESSAGE_REQUEST_MODE: assignment.set_request_mode,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: assignment.all_request_modes,
    # clients
    Code.HEART_BEAT: groups.heartbeat,
    Code.UNREGISTER_CLIENT: groups.unregister_client,
    Code.CHECK_CLIENT_CONFIG: groups.check_client_config,
    Code.GET_CONSUMER_LIST_BY_GROUP: groups.consumer_list,
    Code.LOCK_BATCH_MQ: groups.lock_queues,
    Code.UNLOCK_BATCH_MQ: groups.unlock_queues,
    # offsets
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    Code.GET_MAX_OFFSET: offsets.max_offset,
    Code.GET_MIN_OFFSET: offsets.min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
    Code.QUERY_CORRECTION_OFFSET: offsets.correction_offsets,
    Code.GET_ALL_CONSUMER_OFFSET: offsets.all_consumer_offsets,
    Code.GET_ALL_DELAY_OFFSET: offsets.all_delay_offsets,
    Code.GET_TIMER_CHECK_POINT: timer.timer_progress,
    Code.GET_TIMER_METRICS: timer.timer_metrics,
    Code.SWITCH_TIMER_ENGINE: timer.switch_engine,
    Code.CLONE_GROUP_OFFSET: offsets.clone_offsets,
    # topics
    Code.UPDATE_AND_CREATE_TOPIC: topics.create_topic,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_topics,
    Code.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: topics.all_topics,
    Code.GET_TOPIC_CONFIG: topics.topic_settings,
    Code.GET_TOPIC_STATS_INFO: topics.topic_stats,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: topics.consumed_by,
    Code.QUERY_TOPICS_BY_CONSUMER: topics.topics_of_group,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: topics.subscription_of_group,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
    Code.CLEAN_UNUSED_TOPIC: topics.clean_unused_topics,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: topics.clean_expired_queues,
    # settings of groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: subscription_groups.create_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: subscription_groups.create_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: subscription_groups.delete_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: subscription_groups.all_groups,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: subscription_groups.group_settings,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: subscription_groups.forbid_topic,
    # queries of messages
    Code.QUERY_MESSAGE: queries.query_message,
    Code.VIEW_MESSAGE_BY_ID: queries.view_message,
    Code.QUERY_CONSUME_QUEUE: queries.query_queue,
    Code.QUERY_CONSUME_TIME_SPAN: queries.consume_time_span,
    # connected clients, and requests to them
    Code.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
    Code.GET_ALL_PRODUCER_INFO: clients.all_producers,
    Code.GET_CONSUMER_RUNNING_INFO: clients.consumer_running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: clients.consume_directly,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: offset_resets.reset_offset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: clients.consumer_status,
    # state
    Code.GET_BROKER_RUNTIME_INFO: statistics.runtime_info,
    Code.VIEW_BROKER_STATS_DATA: statistics.broker_stats,
    Code.GET_CONSUME_STATS: statistics.consume_stats,
    Code.GET_BROKER_CONSUME_STATS: statistics.all_consume_stats,
    Code.EXCHANGE_BROKER_HA_INFO: replicas.ha_info,
    Code.GET_BROKER_HA_STATUS: ha.ha_status,
    Code.GET_BROKER_EPOCH_CACHE: replicas.epoch_cache,
    Code.NOTIFY_BROKER_ROLE_CHANGED: replicas.role_changed,
    Code.RESET_MASTER_FLUSH_OFFSET: ha.reset_master_flush_offset,
    # settings
    Code.UPDATE_BROKER_CONFIG: configuration.update_settings,
    Code.GET_BROKER_CONFIG: configuration.settings,
    Code.TRIGGER_DELETE_FILES: configuration.delete_expired_files,
    Code.DELETE_EXPIRED_COMMITLOG: configuration.delete_expired_files,
    # access control 1.0
    Code.UPDATE_AND_CREATE_ACL_CONFIG: plain_access.update_account,
    Code.DELETE_ACL_CONFIG: plain_access.delete_account,
    Code.GET_BROKER_CLUSTER_ACL_INFO: plain_access.versions,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: plain_access.update_white_addresses,
    # users and rules
    Code.AUTH_CREATE_USER: access.create_user,
    Code.AUTH_UPDATE_USER: access.update_user,
    Code.AUTH_DELETE_USER: access.delete_user,
    Code.AUTH_GET_USER: access.user,
    Code.AUTH_LIST_USER: access.users,
    Code.AUTH_CREATE_ACL: access.set_acl,
    Code.AUTH_UPDATE_ACL: access.set_acl,
    Code.AUTH_DELETE_ACL: access.delete_acl,
    Code.AUTH_GET_ACL: access.acl,
    Code.AUTH_LIST_ACL: access.acls,
}
