"""Deletion of lite topics without new messages: ``lite.topic.expiration`` minutes after the last.

The messages stay in the log as long as others. Source: rocketmq 5.5.0
``AbstractLiteLifecycleManager``.
"""

from reput.broker.deletions import Deletions
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.lite.lite_pops import QUEUE_ID, LitePops
from reput.broker.lite.subscriptions import group_of
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.format import names
from reput.remoting.long_replies import CHUNK, chunks
from reput.remoting.time_slices import Steps, run_in_slices
from reput.store.message_store import MessageStore

EXPIRATION = "lite.topic.expiration"
KEPT_MS_MIN = 900_000
"""Time after its last message for which a lite topic is kept at least, in ms."""
_MINUTE_MS = 60_000


async def expire(
    lite: LitePops,
    deletions: Deletions,
    topics: Topics,
    subscription_groups: SubscriptionGroups,
    store: MessageStore,
    clock: Clock,
) -> int:
    """Delete the lite topics that have expired; return their number. Raises ``WriteFailed``."""
    expired: list[str] = []
    search = _find(topics, store, clock.now_ms(), expired)
    await run_in_slices(search, seconds=clock.work_s)
    for queues in chunks(expired, CHUNK):
        groups = [name for name, group in subscription_groups.all().items() if group_of(group)]
        for queue in queues:
            lite.forget(queue, groups)
        await deletions.delete_topics(list(queues))
    return len(expired)


def _find(topics: Topics, store: MessageStore, now_ms: int, expired: list[str]) -> Steps[None]:
    minutes = {
        topic.name: int(dict(topic.attributes).get(EXPIRATION, "-1"))
        for topic in topics.all().values()
    }
    for part in chunks(store.queues.topics()):
        for queue in part:
            lite_topic = names.lite_topic_of(queue)
            kept_minutes = -1 if lite_topic is None else minutes.get(lite_topic[0], -1)
            if kept_minutes <= 0:
                continue
            end = store.max_offset(queue, QUEUE_ID)
            newest_ms = store.store_time(queue, QUEUE_ID, end - 1) if end > 0 else None
            if newest_ms is not None and now_ms - newest_ms > max(
                KEPT_MS_MIN, kept_minutes * _MINUTE_MS
            ):
                expired.append(queue)
        yield
