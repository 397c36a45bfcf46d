"""Administration: topics, groups, brokers, offsets, messages, users and their rules.

    async with Admin(namesrv="127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queue_count=8)
        for name in await admin.topics():
            ...

Results of a cluster's brokers are merged, and changes are sent to each broker. A broker is given by
name, which means its master, or by ``host:port``. Topics and groups have their full names: no
namespace is added. Offsets are those of ARCHITECTURE.md: ``queue_offset`` and ``consumer_offset``
count messages.

    brokers.py  controllers.py  name_servers.py  topics.py  groups.py  members.py  progress.py
    offsets.py  messages.py  traces.py  access.py
                        the methods, each a function whose first argument is the ``Admin``
    cluster_calls.py    requests to brokers, clusters and name servers
"""

from reput.client.admin import (
    access as access_verbs,
    brokers as broker_verbs,
    controllers as controller_verbs,
    groups as group_verbs,
    members as member_verbs,
    messages as message_verbs,
    name_servers as name_server_verbs,
    offsets as offset_verbs,
    progress as progress_verbs,
    topics as topic_verbs,
    traces as trace_verbs,
)
from reput.client.admin.access import AccessUser as AccessUser
from reput.client.admin.cluster_calls import AdminConnection, PartlyDone as PartlyDone
from reput.client.admin.controllers import (
    GroupReplica as GroupReplica,
    ReplicaGroup as ReplicaGroup,
    ReplicaGroups as ReplicaGroups,
)
from reput.client.admin.progress import (
    ConsumeStats as ConsumeStats,
    QueueProgress as QueueProgress,
)
from reput.client.config import ClientConfig, client_config
from reput.clock import Clock


class Admin(AdminConnection):
    """Administers the clusters of some name servers. Use it as ``async with``.

    All methods raise ``RemotingError`` if no answer arrives, and its subclass ``BrokerError``, with
    code and text, if the server refuses.

    Args:
        namesrv: ``host:port;host:port``; or ``client`` instead.
        client: Settings of the client, with the timeout of requests.
        clock: The clock; tests pass their own.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(client_config(namesrv, client), clock)

    # clusters and brokers
    clusters = broker_verbs.clusters
    broker_status = broker_verbs.broker_status
    broker_config = broker_verbs.broker_config
    update_broker_config = broker_verbs.update_broker_config
    ha_status = broker_verbs.ha_status
    broker_stats = broker_verbs.broker_stats
    wipe_write_perm = broker_verbs.wipe_write_perm
    add_write_perm = broker_verbs.add_write_perm
    clean_expired_queues = broker_verbs.clean_expired_queues
    clean_unused_topics = broker_verbs.clean_unused_topics
    delete_expired_log = broker_verbs.delete_expired_log
    # replica groups of controllers
    broker_epochs = controller_verbs.broker_epochs
    leading_controller = controller_verbs.leading_controller
    replica_groups = controller_verbs.replica_groups
    elect_master = controller_verbs.elect_master
    forget_replicas = controller_verbs.forget_replicas
    # name servers
    name_server_config = name_server_verbs.name_server_config
    update_name_server_config = name_server_verbs.update_name_server_config
    kv = name_server_verbs.kv
    kv_of_namespace = name_server_verbs.kv_of_namespace
    put_kv = name_server_verbs.put_kv
    delete_kv = name_server_verbs.delete_kv
    # topics
    topics = topic_verbs.topics
    topic_route = topic_verbs.topic_route
    topic_configs = topic_verbs.topic_configs
    create_topic = topic_verbs.create_topic
    delete_topic = topic_verbs.delete_topic
    topic_status = topic_verbs.topic_status
    groups_of_topic = topic_verbs.groups_of_topic
    # groups
    groups = group_verbs.groups
    create_group = group_verbs.create_group
    delete_group = group_verbs.delete_group
    request_modes = group_verbs.request_modes
    set_request_mode = group_verbs.set_request_mode
    # members of groups
    consumer_connection = member_verbs.consumer_connection
    producer_connection = member_verbs.producer_connection
    producers = member_verbs.producers
    consumer_running_info = member_verbs.consumer_running_info
    consume_directly = member_verbs.consume_directly
    # progress of groups
    consume_stats = progress_verbs.consume_stats
    consume_time_spans = progress_verbs.consume_time_spans
    # offsets
    consumer_offset = offset_verbs.consumer_offset
    update_consumer_offset = offset_verbs.update_consumer_offset
    reset_offsets = offset_verbs.reset_offsets
    clone_offsets = offset_verbs.clone_offsets
    min_offset = offset_verbs.min_offset
    max_offset = offset_verbs.max_offset
    search_offset = offset_verbs.search_offset
    earliest_store_time = offset_verbs.earliest_store_time
    consume_queue = offset_verbs.consume_queue
    # messages
    message_by_offset_id = message_verbs.message_by_offset_id
    message_by_unique_key = message_verbs.message_by_unique_key
    messages_by_key = message_verbs.messages_by_key
    messages_by_offset_id = message_verbs.messages_by_offset_id
    messages_by_unique_key = message_verbs.messages_by_unique_key
    resume_check = message_verbs.resume_check
    message_trace = trace_verbs.message_trace
    # users and rules
    create_user = access_verbs.create_user
    update_user = access_verbs.update_user
    delete_user = access_verbs.delete_user
    user = access_verbs.user
    users = access_verbs.users
    create_acl = access_verbs.create_acl
    update_acl = access_verbs.update_acl
    delete_acl = access_verbs.delete_acl
    acl = access_verbs.acl
    acls = access_verbs.acls
