"""Every request code has a rule: the limits that bound its cost, and how its work is sliced.

A processor without a rule fails here, and so does a rule that is no longer true. Every request is
bounded by its frame (16 MiB), its header (``HEADER_BYTES``, ``HEADER_FIELDS``) and the bytes that
its client reads (``REPLY_BYTES``, ``UNREAD_BYTES_PER_CONNECTION``); the rules name further bounds.
"""

import contextlib
import enum
import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import all_limits as limits
import world
from hostile import mutations, requests
from hostile.wire import Draft
from reput.broker.processors.table import PROCESSORS as BROKER_PROCESSORS
from reput.errors import ReputError
from reput.format import command as commands
from reput.format.codes import RequestCode as Code
from reput.limits import Limit, declared
from reput.namesrv.processors import PROCESSORS as NAMESRV_PROCESSORS
from world import Subject

pytestmark = pytest.mark.hostile


class Turns(enum.Enum):
    """How the work of a request alternates with that of other requests."""

    SLICED = "a generator, run in slices of 3 ms"
    CONSTANT = "at once: a few look-ups, or work that the named limits keep below a slice"
    LATER = "answered later, by a task or a loop that takes turns, or in a thread"


@dataclass(frozen=True)
class Rule:
    """The bounds of a request."""

    turns: Turns
    bounds: tuple[Limit, ...]
    why: str = ""
    """For work done at once: the data that it reads."""


def sliced(*bounds: Limit) -> Rule:
    return Rule(Turns.SLICED, bounds)


def constant(why: str, *bounds: Limit) -> Rule:
    return Rule(Turns.CONSTANT, bounds, why)


def later(why: str, *bounds: Limit) -> Rule:
    return Rule(Turns.LATER, bounds, why)


_NAMES = (limits.TOPIC_NAME_LETTERS, limits.GROUP_NAME_LETTERS)
_NEW_TOPICS = (limits.TOPICS, limits.AUTO_CREATED_TOPICS, limits.AUTO_CREATED_TOPICS_PER_ADDRESS)
_NEW_GROUPS = (limits.GROUPS, limits.AUTO_CREATED_GROUPS, limits.AUTO_CREATED_GROUPS_PER_ADDRESS)
_HELD = (limits.HELD_PER_CONNECTION, limits.HELD_PER_ADDRESS)
_FILTERS = (limits.SUBSCRIPTION_BYTES, limits.FILTER_BYTES, limits.FILTER_NODES)
_OFFSETS = (limits.CONSUMER_OFFSETS, limits.CONSUMER_OFFSETS_PER_ADDRESS)
_JSON = (limits.BODY_BYTES, limits.LENIENT_JSON_BYTES)
_PUT = (*_NEW_TOPICS, limits.WAITING_PUTS)
_NAMESRV = (limits.NAMESRV_NAME_LETTERS,)
_ACL_FILE = (limits.HEADER_BYTES, limits.WAITING_SETTINGS)
_USER = (limits.USERS, limits.USER_NAME_LETTERS, limits.PASSWORD_LETTERS)
_RULES = (limits.USER_RULES, limits.RESOURCE_LETTERS)
_PUSHED = (limits.PUSHED_BYTES, limits.UNREAD_NOTICE_BYTES)

BROKER: dict[Code, Rule] = {
    Code.SEND_MESSAGE: constant("one record", *_PUT),
    Code.SEND_MESSAGE_V2: constant("one record", *_PUT),
    Code.SEND_BATCH_MESSAGE: constant("records of one body", limits.BATCH_MESSAGES, *_PUT),
    Code.CONSUMER_SEND_MSG_BACK: constant("one record", *_PUT, *_NEW_GROUPS),
    Code.SEND_REPLY_MESSAGE: later("when the asker has answered", *_PUSHED),
    Code.SEND_REPLY_MESSAGE_V2: later("when the asker has answered", *_PUSHED),
    Code.END_TRANSACTION: constant("one record and its unit", *_PUT),
    Code.RESUME_CHECK_HALF_MESSAGE: constant("one record and its unit", *_PUT),
    Code.RECALL_MESSAGE: constant("one record", limits.RECALLS, limits.RECALLED_KEY_BYTES),
    Code.PULL_MESSAGE: constant("some units of one queue", *_HELD, *_FILTERS, *_NEW_GROUPS),
    Code.LITE_PULL_MESSAGE: constant("some units of one queue", *_HELD, *_FILTERS, *_NEW_GROUPS),
    Code.POP_MESSAGE: constant(
        "some units of a few queues", *_HELD, *_FILTERS, *_NEW_GROUPS, limits.TOPIC_QUEUES,
        limits.POP_INVISIBLE_MS, limits.POP_ATTEMPT_LETTERS,
    ),
    Code.PEEK_MESSAGE: constant("some units of a few queues", *_NAMES, limits.TOPIC_QUEUES),
    Code.NOTIFICATION: constant("the ends of a topic's queues", *_HELD, limits.TOPIC_QUEUES),
    Code.POLLING_INFO: constant("a count", *_NAMES),
    Code.ACK_MESSAGE: constant("one checkpoint", *_NAMES, limits.ACK_SPAN),
    Code.BATCH_ACK_MESSAGE: sliced(limits.ACK_BODY_BYTES, limits.ACK_SPAN, limits.ACK_MESSAGES),
    Code.CHANGE_MESSAGE_INVISIBLETIME: constant("two checkpoints", limits.POP_INVISIBLE_MS),
    Code.POP_ROLLBACK: constant("nothing", limits.HEADER_BYTES),
    Code.POP_LITE_MESSAGE: constant(
        "32 messages, up to 1,000 queues", limits.LITE_CLIENTS, limits.POP_INVISIBLE_MS, *_HELD
    ),
    Code.LITE_SUBSCRIPTION_CTL: sliced(
        limits.LITE_SUBSCRIPTIONS, limits.LITE_CLIENTS, limits.LITE_TOPIC_LETTERS, *_JSON
    ),
    Code.GET_BROKER_LITE_INFO: sliced(limits.TOPICS, limits.GROUPS),
    Code.GET_PARENT_TOPIC_INFO: sliced(limits.TOPICS, limits.GROUPS),
    Code.GET_LITE_TOPIC_INFO: constant("the clients of a lite topic", limits.LITE_CLIENTS),
    Code.GET_LITE_CLIENT_INFO: constant("up to 10,000 names", limits.LITE_SUBSCRIPTIONS),
    Code.GET_LITE_GROUP_INFO: sliced(limits.LITE_SUBSCRIPTIONS),
    Code.TRIGGER_LITE_DISPATCH: sliced(limits.LITE_SUBSCRIPTIONS),
    Code.QUERY_ASSIGNMENT: later("when a name server has answered", limits.ASSIGNMENTS_ASKED),
    Code.SET_MESSAGE_REQUEST_MODE: later("when it is saved", limits.REQUEST_MODES, *_JSON),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: constant("one table", limits.REQUEST_MODES),
    Code.HEART_BEAT: sliced(
        limits.HEARTBEAT_GROUPS, limits.HEARTBEAT_SUBSCRIPTIONS, limits.CLIENT_ID_BYTES,
        limits.CONNECTION_GROUPS, limits.MEMBERSHIPS, *_FILTERS, *_NEW_GROUPS, *_JSON,
    ),
    Code.UNREGISTER_CLIENT: constant("two memberships", *_NAMES),
    Code.CHECK_CLIENT_CONFIG: sliced(*_FILTERS, *_JSON),
    Code.GET_CONSUMER_LIST_BY_GROUP: sliced(limits.GROUP_MEMBERS),
    Code.LOCK_BATCH_MQ: sliced(limits.LOCK_QUEUES, limits.LOCKS_PER_ADDRESS, *_JSON),
    Code.UNLOCK_BATCH_MQ: sliced(limits.LOCK_QUEUES, *_JSON),
    Code.QUERY_CONSUMER_OFFSET: constant("one offset", *_NAMES),
    Code.UPDATE_CONSUMER_OFFSET: constant("one offset", *_OFFSETS),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: constant("a binary search in one queue", *_NAMES),
    Code.GET_MAX_OFFSET: constant("one queue", *_NAMES),
    Code.GET_MIN_OFFSET: constant("one queue", *_NAMES),
    Code.GET_EARLIEST_MSG_STORETIME: constant("one record", *_NAMES),
    Code.QUERY_CORRECTION_OFFSET: sliced(*_OFFSETS),
    Code.GET_ALL_CONSUMER_OFFSET: sliced(*_OFFSETS, limits.REPLY_BYTES),
    Code.GET_ALL_DELAY_OFFSET: constant("an offset for each delay level", limits.HEADER_BYTES),
    Code.GET_TIMER_CHECK_POINT: constant("a few numbers", limits.HEADER_BYTES),
    Code.GET_TIMER_METRICS: constant("a number for each topic", limits.TOPICS, limits.REPLY_BYTES),
    Code.SWITCH_TIMER_ENGINE: constant("nothing", limits.HEADER_BYTES),
    Code.CLONE_GROUP_OFFSET: sliced(*_OFFSETS, limits.TOPIC_QUEUES),
    Code.UPDATE_AND_CREATE_TOPIC: sliced(
        limits.TOPICS, limits.TOPIC_QUEUES, limits.QUEUES, limits.ATTRIBUTES
    ),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: sliced(
        limits.LISTED_TOPICS, limits.TOPICS, limits.TOPIC_QUEUES, limits.QUEUES, *_JSON
    ),
    Code.DELETE_TOPIC_IN_BROKER: sliced(limits.TOPIC_QUEUES, limits.WAITING_DELETIONS),
    Code.GET_ALL_TOPIC_CONFIG: sliced(limits.TOPICS, limits.REPLY_BYTES),
    Code.GET_TOPIC_CONFIG: constant("one topic", *_NAMES, limits.ATTRIBUTES),
    Code.GET_TOPIC_STATS_INFO: sliced(limits.TOPIC_QUEUES, limits.REPLY_BYTES),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: sliced(*_OFFSETS),
    Code.QUERY_TOPICS_BY_CONSUMER: sliced(*_OFFSETS),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: constant(
        "one subscription", limits.HEARTBEAT_SUBSCRIPTIONS
    ),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: constant("a fixed list", limits.HEADER_BYTES),
    Code.CLEAN_UNUSED_TOPIC: later("when it is done, in slices", limits.TOPICS),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: later("when it is done, in slices", limits.QUEUES),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: sliced(
        limits.GROUPS, limits.GROUP_RETRY_QUEUES, limits.GROUP_SETTINGS_BYTES, *_JSON
    ),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: sliced(
        limits.LISTED_GROUPS, limits.GROUPS, limits.GROUP_RETRY_QUEUES,
        limits.ALL_GROUP_SETTINGS_BYTES, *_JSON,
    ),
    Code.DELETE_SUBSCRIPTIONGROUP: constant("one group; the rest in slices", *_OFFSETS),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: sliced(limits.GROUPS, limits.REPLY_BYTES),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: constant("one group", limits.GROUP_SETTINGS_BYTES),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: later("when it is saved", limits.FORBIDDEN_TOPICS),
    Code.QUERY_MESSAGE: sliced(
        limits.QUERY_KEY_LETTERS, limits.INDEX_STEPS, limits.BATCH_KEYS, limits.REPLY_BYTES
    ),
    Code.VIEW_MESSAGE_BY_ID: constant("one record", limits.REPLY_BYTES),
    Code.QUERY_CONSUME_QUEUE: sliced(limits.REPLY_BYTES),
    Code.QUERY_CONSUME_TIME_SPAN: sliced(limits.TOPIC_QUEUES),
    Code.GET_CONSUMER_CONNECTION_LIST: sliced(limits.GROUP_MEMBERS, limits.HEARTBEAT_SUBSCRIPTIONS),
    Code.GET_PRODUCER_CONNECTION_LIST: sliced(limits.GROUP_MEMBERS),
    Code.GET_ALL_PRODUCER_INFO: sliced(limits.MEMBERSHIPS, limits.REPLY_BYTES),
    Code.GET_CONSUMER_RUNNING_INFO: later("when the member has answered", *_PUSHED),
    Code.CONSUME_MESSAGE_DIRECTLY: later("when the member has answered", *_PUSHED),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: sliced(
        limits.TOPIC_QUEUES, limits.RESET_OFFSETS, *_PUSHED
    ),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: sliced(limits.ASKED_MEMBERS, *_PUSHED),
    Code.GET_BROKER_RUNTIME_INFO: sliced(limits.TOPICS),
    Code.VIEW_BROKER_STATS_DATA: sliced(limits.TOPICS),
    Code.GET_CONSUME_STATS: sliced(*_OFFSETS, limits.TOPIC_QUEUES, limits.REPLY_BYTES),
    Code.GET_BROKER_CONSUME_STATS: sliced(*_OFFSETS, limits.REPLY_BYTES),
    Code.EXCHANGE_BROKER_HA_INFO: constant("two addresses", limits.HEADER_BYTES),
    Code.GET_BROKER_EPOCH_CACHE: constant("a line for each of 1,000 epochs", limits.HEADER_BYTES),
    Code.NOTIFY_BROKER_ROLE_CHANGED: constant("a flag", limits.HEADER_BYTES),
    Code.GET_BROKER_HA_STATUS: constant("a few numbers", limits.HEADER_BYTES),
    Code.RESET_MASTER_FLUSH_OFFSET: constant("nothing", limits.HEADER_BYTES),
    Code.UPDATE_BROKER_CONFIG: constant("a short text", limits.SETTINGS_BYTES),
    Code.GET_BROKER_CONFIG: constant("a fixed list of keys", limits.SETTINGS_BYTES),
    Code.TRIGGER_DELETE_FILES: constant("a flag that a loop looks at", limits.HEADER_BYTES),
    Code.DELETE_EXPIRED_COMMITLOG: constant("a flag that a loop looks at", limits.HEADER_BYTES),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: later("when the file is written", *_ACL_FILE),
    Code.DELETE_ACL_CONFIG: later("when the file is written", *_ACL_FILE),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: later("when the file is written", *_ACL_FILE),
    Code.GET_BROKER_CLUSTER_ACL_INFO: constant("a few files", limits.HEADER_BYTES),
    Code.AUTH_CREATE_USER: later("when the users are written", *_USER),
    Code.AUTH_UPDATE_USER: later("when the users are written", *_USER),
    Code.AUTH_DELETE_USER: later("when the users are written", *_USER),
    Code.AUTH_GET_USER: constant("one user", limits.HEADER_BYTES),
    Code.AUTH_LIST_USER: sliced(limits.USERS),
    Code.AUTH_CREATE_ACL: later("when the rules are written", *_RULES),
    Code.AUTH_UPDATE_ACL: later("when the rules are written", *_RULES),
    Code.AUTH_DELETE_ACL: later("when the rules are written", *_RULES),
    Code.AUTH_GET_ACL: constant("the rules of a user", limits.USER_RULES),
    Code.AUTH_LIST_ACL: sliced(limits.USERS, limits.USER_RULES),
}  # fmt: skip

NAMESRV: dict[Code, Rule] = {
    Code.PUT_KV_CONFIG: later(
        "when it is saved, in a thread", limits.KV_TABLE_BYTES, limits.KV_KEYS,
        limits.KV_CHANGES_WAITING,
    ),
    Code.GET_KV_CONFIG: constant("one value", *_NAMESRV, limits.KV_TABLE_BYTES),
    Code.DELETE_KV_CONFIG: later("when it is saved", limits.KV_KEYS, limits.KV_CHANGES_WAITING),
    Code.REGISTER_BROKER: sliced(
        limits.REGISTRATION_BYTES, limits.REGISTRATION_TOPICS, limits.NAMESRV_BROKERS,
        limits.NAMESRV_BROKERS_PER_CONNECTION, limits.NAMESRV_BROKER_IDS,
        limits.NAMESRV_BROKER_CLUSTERS, limits.NAMESRV_FILTER_SERVERS, limits.NAMESRV_TOPICS,
        limits.NAMESRV_QUEUES,
    ),
    Code.UNREGISTER_BROKER: constant("one broker; its topics in slices", limits.NAMESRV_TOPICS),
    Code.GET_ROUTEINFO_BY_TOPIC: sliced(limits.ROUTE_BROKERS, *_NAMESRV),
    Code.GET_BROKER_CLUSTER_INFO: sliced(limits.NAMESRV_BROKERS, limits.REPLY_BYTES),
    Code.WIPE_WRITE_PERM_OF_BROKER: sliced(limits.NAMESRV_TOPICS),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: sliced(limits.NAMESRV_TOPICS, limits.REPLY_BYTES),
    Code.DELETE_TOPIC_IN_NAMESRV: constant("one topic", *_NAMESRV, limits.ROUTE_BROKERS),
    Code.REGISTER_TOPIC_IN_NAMESRV: constant("one topic", *_JSON, limits.ROUTE_BROKERS),
    Code.GET_KVLIST_BY_NAMESPACE: constant("one namespace", limits.KV_TABLE_BYTES),
    Code.GET_TOPICS_BY_CLUSTER: sliced(limits.NAMESRV_TOPICS, limits.REPLY_BYTES),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: sliced(limits.NAMESRV_BROKERS, limits.REPLY_BYTES),
    Code.GET_UNIT_TOPIC_LIST: sliced(limits.NAMESRV_TOPICS, limits.REPLY_BYTES),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: sliced(limits.NAMESRV_TOPICS, limits.REPLY_BYTES),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: sliced(limits.NAMESRV_TOPICS, limits.REPLY_BYTES),
    Code.UPDATE_NAMESRV_CONFIG: constant("a short text", limits.SETTINGS_BYTES),
    Code.GET_NAMESRV_CONFIG: constant("a fixed list of keys", limits.SETTINGS_BYTES),
    Code.QUERY_DATA_VERSION: constant("one broker", *_NAMESRV, *_JSON),
    Code.ADD_WRITE_PERM_OF_BROKER: sliced(limits.NAMESRV_TOPICS),
    Code.GET_BROKER_MEMBER_GROUP: constant("one broker", *_NAMESRV, limits.NAMESRV_BROKERS),
    Code.BROKER_HEARTBEAT: constant("one broker", *_NAMESRV),
}  # fmt: skip

SERVERS = {"broker": (BROKER, BROKER_PROCESSORS), "namesrv": (NAMESRV, NAMESRV_PROCESSORS)}


@pytest.mark.parametrize("server", SERVERS)
def test_every_request_has_a_rule(server: str) -> None:
    rules, processors = SERVERS[server]
    assert sorted(set(processors) - set(rules)) == [], "requests without a rule"
    assert sorted(set(rules) - set(processors)) == [], "rules of requests that are not served"


@pytest.mark.parametrize("server", SERVERS)
def test_the_rules_are_true(server: str) -> None:
    rules, processors = SERVERS[server]
    for code, rule in rules.items():
        processor = processors[code]
        is_generator = inspect.isgeneratorfunction(processor)
        assert is_generator == (rule.turns is Turns.SLICED), f"{code!r}: {rule.turns}"
        assert rule.bounds, f"{code!r}: no limit is named"
        assert set(rule.bounds) <= set(declared()), code
        # A rule for work done at once names the data that it reads.
        assert bool(rule.why) != is_generator, code
        if rule.turns is Turns.LATER:
            # A task sends the reply: the processor has none to return.
            assert "None" in str(inspect.signature(processor).return_annotation), code


# --- work done at once does not grow with the broker's state ------------------

TOPICS = 2_000
CALLS = 20
GROWTH_MAX = 4
"""Limit of the growth of a request's time; a walk over all topics grows by a factor of hundreds."""
FLOOR_S = 0.0002
"""CPU time of a call, in s, below which times are not compared: noise of clock and allocator."""

AT_ONCE = [code for code, rule in BROKER.items() if rule.turns is Turns.CONSTANT]


def cpu_s(subject: Subject, code: Code) -> float:
    """Return the CPU time of a call of a code's processor; the minimum of some tries."""
    (draft, *_) = requests.BROKER[code]
    channel = next(iter(subject.broker._servers[0].channels))
    best = 1.0
    for _ in range(5):
        frames = [commands.decode(draft.encode()[4:]) for _ in range(CALLS)]
        start = time.process_time()
        for frame in frames:
            with contextlib.suppress(ReputError):
                BROKER_PROCESSORS[code](subject.broker.parts, channel, frame)
        best = min(best, (time.process_time() - start) / CALLS)
    return best


@pytest.mark.soak
@pytest.mark.slow
async def test_work_done_at_once_does_not_grow_with_the_broker(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        await subject.send(requests.TOPIC)
        before = {code: cpu_s(subject, code) for code in AT_ONCE}
        for number in range(TOPICS):
            await subject.send(f"Other{number}")
        after = {code: cpu_s(subject, code) for code in AT_ONCE}
    grown = {
        code.name: f"{before[code] * 1e6:.0f} us, with {TOPICS} topics {after[code] * 1e6:.0f} us"
        for code in AT_ONCE
        if after[code] > FLOOR_S and after[code] > before[code] * GROWTH_MAX
    }
    assert not grown


@pytest.mark.parametrize("mutation", [mutations.change_body_value, mutations.drop_body_value])
def test_a_body_that_has_lost_all_its_values_can_be_mutated(
    mutation: Callable[[random.Random, Draft], None],
) -> None:
    """Two mutations of one request removed all values, which ended a long run."""
    draft = Draft(1, document={"only": 1})
    mutations.drop_body_value(random.Random(1), draft)
    assert draft.document == {}
    mutation(random.Random(1), draft)
    assert draft.document == {}
