"""Parts of a running broker, for request processors and background loops.

``assembly`` makes them. A function that needs a few parts takes those; one that needs many takes
``Parts``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from reput.broker.access.access import Access
from reput.broker.access.plain_control import PlainControl
from reput.broker.assignments import RequestModes
from reput.broker.counters.fast_counts import FastCounts
from reput.broker.delay import DelaySchedule
from reput.broker.deletions import Deletions
from reput.broker.deliveries import Deliveries
from reput.broker.filter.consumer_filters import ConsumerFilters
from reput.broker.filter.filters import Filters
from reput.broker.group.groups import Groups
from reput.broker.group.members import Members
from reput.broker.group.queue_locks import QueueLocks
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.held_requests import HeldPull, HeldRequests
from reput.broker.identity import Identity
from reput.broker.lite.lite_pops import LitePops
from reput.broker.offset.commits import OffsetCommits
from reput.broker.offset.resets import ResetOffsets
from reput.broker.pending_replies import PendingReplies
from reput.broker.pop.pops import Pops
from reput.broker.pull_subscriptions import PullSubscriptions
from reput.broker.put_stalls import PutStalls
from reput.broker.quarantine import Quarantine
from reput.broker.registration import Registration
from reput.broker.replicas.member import Member
from reput.broker.replication.replication import Replication
from reput.broker.retries import Retries
from reput.broker.settings.live import Change, LiveConfig
from reput.broker.tables.failures import WriteFailures
from reput.broker.tables.saved_tables import SavedTables
from reput.broker.tables.topic_writes import TopicWrites
from reput.broker.tables.writes import TableWrites
from reput.broker.tasks import Tasks
from reput.broker.threads import SyncThread, WorkerThread
from reput.broker.timer.timers import Timers
from reput.broker.topic.topics import Topics
from reput.broker.transaction.transactions import Transactions
from reput.clock import Clock
from reput.remoting.channel import Channel
from reput.remoting.long_replies import SharedReplies
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server_state import ServerState
from reput.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a running broker."""

    settings: LiveConfig
    """The settings in force."""
    change_settings: Callable[[Mapping[str, str]], Awaitable[Change]]
    """Changes settings, given keys and texts of broker.conf; also the role."""
    identity: Identity
    """Addresses and role."""
    clock: Clock
    store: MessageStore
    pull_subscriptions: PullSubscriptions
    """The readers whose pulls the fast path answers."""
    serving: ServerState
    """Connections, their cost, and refused requests."""
    access: Access | None
    """Check of each request; None: all requests are served."""
    plain_control: PlainControl | None
    """The files of access control 1.0; None if it is off."""

    topics: Topics
    listings: SharedReplies = field(default_factory=SharedReplies)
    """Replies that are the same for all clients."""
    subscription_groups: SubscriptionGroups
    """The settings of consumer groups."""
    groups: Groups[Channel]
    """Groups and their members."""
    members: Members
    """Handling of members that join, change or leave."""
    filters: Filters
    """Compiled SQL filters."""
    consumer_filters: ConsumerFilters
    """SQL filters of consumer groups, with their bits."""
    locks: QueueLocks
    """Locks of members on queues."""
    request_modes: RequestModes
    """Request modes of groups: pull or pop."""

    deliveries: Deliveries
    """Statistics and consumer offsets."""
    deletions: Deletions
    """Deletion of topics, groups and queues."""
    commits: OffsetCommits
    """Rules for consumer offsets that clients commit."""
    resets: ResetOffsets
    """Consumer offsets that operators have set."""
    fast_counts: FastCounts = field(default_factory=FastCounts)
    """Requests that the fast path has handled."""

    put_stalls: PutStalls
    """Puts that stalled, and the sends that waited for them."""
    sync_thread: SyncThread
    """The thread that makes the log durable."""
    pending_replies: PendingReplies
    """Replies to sends that wait for durability."""
    held_pulls: HeldRequests[HeldPull]
    """Pulls that wait for messages."""
    pops: Pops
    lite: LitePops
    """Lite topics."""
    retries: Retries
    delayed: DelaySchedule
    """Messages with a delay level."""
    timers: Timers
    """Messages with a delivery time."""
    transactions: Transactions

    registration: Registration
    """Registration with name servers."""
    replication: Replication
    member: Member | None
    """Membership in a replica group; None without a controller."""
    saved_tables: SavedTables
    table_writes: TableWrites
    topic_writes: TopicWrites
    quarantine: Quarantine
    """Stored records that loops have skipped."""
    write_failures: WriteFailures
    """Files that cannot be written at present."""
    disk_thread: WorkerThread
    """The thread for work that waits for the disk."""
    tasks: Tasks
    """Tasks started by requests."""
    setting_requests: RequestQueue
    """Requests that change settings, served one at a time."""
    deletion_requests: RequestQueue
    """Requests that delete topics, groups or queues, served one at a time."""
    assignment_tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Requests for the queues of members that wait for a name server."""
    start_warnings: tuple[str, ...]
    """Losses and recoveries that were found at the start."""

    @property
    def holds_requests(self) -> bool:
        """Whether pulls, pops or notifications wait for messages."""
        return bool(self.held_pulls.count or self.pops.held.count or self.lite.held.count)
