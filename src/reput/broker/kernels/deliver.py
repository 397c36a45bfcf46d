"""Kernel: answer the pulls in a receive buffer with records of the log.

A part of ``send.receive``, which reads their headers. A pull that is not as follows falls back to
the processor (``STOP_FRAME``), and nothing of it is done.

**What takes the fast path**:

* ``deliver_is_on``. Code 11 or 361, flag 0, opaque not negative; no body.
* Its fields are those of ``pull_rules``, ``topic``, ``queueId``, ``sysFlag`` and ``bname``;
  ``pull_rules.OPTIONAL`` may be absent. Texts and numbers have the form of those in ``send``.
* ``sysFlag``: ``pull_rules.ALLOWED_FLAGS``. ``expressionType``: ``TAG``.
* There is a reader row for its group, its topic, and the expression in it, if ``sysFlag`` says that
  it has one. The store adds rows for pulls that a processor has answered, and removes all of
  them when anything changes that replies depend on: permissions, subscriptions.
* Without an expression, ``subVersion`` is not above that of the reader row.
* ``queueId`` is below ``queues`` of the reader row; the topic has a row of KIND_PLAIN, and the
  queue has one.
* The units that the processor would read are in memory, in the tail or in the read-ahead; or the
  reply is full before the units in memory are used up.
* Some records are wanted; no record that was read is gone, damaged, or not mapped.
* ``maxMsgNums`` is not 0.
* The next offset has as many digits as the offset after the first ``maxMsgNums`` units: the head of
  the reply precedes the records, and gets its room before they are found.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import pull_rules
from reput.broker.kernels.pull_head import pull_head_size, put_pull_head
from reput.broker.kernels.request_fields import (
    COMMIT_OFFSET,
    CONSUMER_GROUP,
    EXPRESSION_TYPE,
    FIELD_NAMES,
    LONG,
    LONG_MAX,
    MAX_BYTES,
    MAX_MESSAGES,
    QUEUE_ID,
    QUEUE_OFFSET,
    SUB_VERSION,
    SUBSCRIPTION,
    SUSPEND_TIMEOUT,
    SYS_FLAG,
    TOPIC,
    field_place,
    has_field,
    is_number,
    is_text,
    value_of,
)
from reput.format.codes import PullFlag, RequestCode
from reput.format.kernels.hashes import name_slot
from reput.format.kernels.memory import COMPILE_OPTIONS
from reput.format.kernels.plain_text import INT_MAX, first_word, name_word
from reput.store.kernels import control_block as state
from reput.store.kernels.append import find_queue, find_topic
from reput.store.kernels.pull import READ_UNITS_MAX, pull, units_in_memory

PULL = int(RequestCode.PULL_MESSAGE)
LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)
REQUIRED = sum(
    1 << FIELD_NAMES.index(name)
    for name in (*pull_rules.FIELD_NAMES, "topic", "queueId", "sysFlag")
    if name not in pull_rules.OPTIONAL
)
ALLOWED = REQUIRED | sum(1 << FIELD_NAMES.index(name) for name in pull_rules.OPTIONAL)
COMMIT = int(PullFlag.COMMIT_OFFSET)
HAS_SUBSCRIPTION = int(PullFlag.HAS_SUBSCRIPTION)
ALLOWED_FLAGS = pull_rules.ALLOWED_FLAGS
HEAD_BYTES_MAX = pull_rules.HEAD_BYTES_MAX
TAG = name_word(pull_rules.TAG)
TAG_SIZE = len(pull_rules.TAG)


@njit(**COMPILE_OPTIONS)
def is_pull(block):
    """Return whether the frame that was read is a pull, fast or not."""
    code = block.frame_code
    return code in (PULL, LITE_PULL)


@njit(**COMPILE_OPTIONS)
def is_fast_pull(block):
    """Return whether the pull that was read is a fast one, but for its reader and queue."""
    if block.frame_flag != 0 or block.frame_opaque < 0:
        return False
    seen = block.frame_seen
    names = seen >> LONG
    if seen != names << LONG or names & REQUIRED != REQUIRED or names & ~ALLOWED != 0:
        return False
    if has_field(block, EXPRESSION_TYPE):
        address, size = field_place(block, EXPRESSION_TYPE)
        if size != TAG_SIZE or first_word(address, size) != TAG:
            return False
    if has_field(block, MAX_BYTES) and not is_number(block, MAX_BYTES, INT_MAX):
        return False
    return (
        is_number(block, QUEUE_ID, INT_MAX)
        and is_number(block, QUEUE_OFFSET, LONG_MAX)
        and is_number(block, MAX_MESSAGES, INT_MAX)
        and value_of(block, MAX_MESSAGES) > 0
        and is_number(block, SYS_FLAG, INT_MAX)
        and value_of(block, SYS_FLAG) & ~ALLOWED_FLAGS == 0
        and is_number(block, COMMIT_OFFSET, LONG_MAX)
        and is_number(block, SUSPEND_TIMEOUT, LONG_MAX)
        and is_number(block, SUB_VERSION, LONG_MAX)
    )


@njit(**COMPILE_OPTIONS)
def find_reader(block):
    """Return the row of the reader whose pull was read; 0 if there is none."""
    slots = block.reader_slots
    if slots == 0:
        return 0
    group, group_size = field_place(block, CONSUMER_GROUP)
    topic, topic_size = field_place(block, TOPIC)
    text, text_size = 0, -1
    if value_of(block, SYS_FLAG) & HAS_SUBSCRIPTION:
        text, text_size = field_place(block, SUBSCRIPTION)
        if not has_field(block, SUBSCRIPTION):
            return 0
    table = block.readers
    slot = name_slot(group, group_size, slots) ^ name_slot(topic, topic_size, slots)
    while True:
        row = table[slot]
        if row == 0:
            return 0
        if (
            is_text(group, group_size, row.group, row.group_size)
            and is_text(topic, topic_size, row.topic, row.topic_size)
            and text_size == row.subscription_size
            and (text_size <= 0 or is_text(text, text_size, row.subscription, text_size))
        ):
            return row
        slot = (slot + 1) & (slots - 1)


@njit(**COMPILE_OPTIONS)
def find_messages(block, reader, row, units, unit_count):
    """Copy records to after the room for a head; return the size of the head, 0 if there are none.

    If there are none, ``stop`` says whether the frame falls back, or replies must be sent first.
    """
    queue_offset = value_of(block, QUEUE_OFFSET)
    max_count = value_of(block, MAX_MESSAGES)
    wanted = max_count
    code_count = reader.code_count
    if code_count:
        wanted = max(wanted, block.filtered_units_max)
    wanted = min(wanted, READ_UNITS_MAX)
    count = min(unit_count, wanted)
    max_offset = row.max_offset
    used = block.replies_bytes
    room = block.replies_room - used - HEAD_BYTES_MAX
    when_full = state.STOP_REPLIES if used > 0 else state.STOP_FRAME
    block.stop = when_full
    if room < 0:
        return 0
    kind = block.frame_serialization
    opaque = block.frame_opaque
    min_offset = row.min_offset
    likely_offset = queue_offset + min(count, max_count)
    head = pull_head_size(kind, opaque, likely_offset, min_offset, max_offset)
    block.pull_units = units
    block.pull_unit_count = count
    block.pull_queue_offset = queue_offset
    block.pull_buffer = block.replies_address + used + head
    block.pull_room = room
    block.pull_count_max = max_count
    block.pull_codes = reader.codes
    block.pull_code_count = code_count
    block.result_last_offset = 0
    record_count = pull(block)
    stop = block.stop
    block.stop = when_full if stop == state.STOP_BUFFER else state.STOP_FRAME
    if stop != state.STOP_DONE or record_count == 0:
        return 0
    if block.result_gone != 0 or block.result_damaged != 0:
        return 0
    scanned = block.result_scanned
    is_used_up = scanned == count and count < wanted and queue_offset + count < max_offset
    next_offset = queue_offset + scanned
    if is_used_up or head != pull_head_size(kind, opaque, next_offset, min_offset, max_offset):
        return 0
    return head


@njit(**COMPILE_OPTIONS)
def suggested_broker(block, reader):
    """Return the id of the broker that should serve the next pull."""
    distance = block.readable - block.result_last_offset
    if distance > block.memory_bytes:
        return reader.far_broker
    return reader.broker


@njit(**COMPILE_OPTIONS)
def count_delivery(block, reader):
    """Count what the pull got, and record the consumer offset in it."""
    number = value_of(block, QUEUE_ID)
    delivery = reader.deliveries[number]
    pulls = delivery.pulls
    if pulls == 0:
        listed = block.delivered_count
        block.delivered[listed] = delivery
        block.delivered_count = listed + 1
    delivery.pulls = pulls + 1
    messages = delivery.messages + block.result_count
    delivery.messages = messages
    size = delivery.bytes + block.result_bytes
    delivery.bytes = size
    if value_of(block, SYS_FLAG) & COMMIT:
        delivery.consumer_offset = value_of(block, COMMIT_OFFSET)


@njit(**COMPILE_OPTIONS)
def deliver(block):
    """Answer the pull that was read; return STOP_DONE, or why not, with nothing done."""
    if block.deliver_is_on == 0 or not is_fast_pull(block):
        return state.STOP_FRAME
    reader = find_reader(block)
    if reader == 0 or value_of(block, QUEUE_ID) >= reader.queues:
        return state.STOP_FRAME
    is_known = reader.subscription_size < 0
    if is_known and value_of(block, SUB_VERSION) > reader.version:
        return state.STOP_FRAME
    topic, topic_size = field_place(block, TOPIC)
    topic_row = find_topic(block, topic, topic_size)
    if topic_row == 0 or topic_row.kind != state.KIND_PLAIN:
        return state.STOP_FRAME
    row = find_queue(topic_row, value_of(block, QUEUE_ID))
    if row == 0:
        return state.STOP_FRAME
    units, unit_count = units_in_memory(row, value_of(block, QUEUE_OFFSET))
    if unit_count == 0:
        return state.STOP_FRAME
    head = find_messages(block, reader, row, units, unit_count)
    if head == 0:
        return block.stop
    used = block.replies_bytes
    body_size = block.result_bytes
    put_pull_head(
        block.replies_address + used,
        block.frame_serialization,
        block.frame_opaque,
        value_of(block, QUEUE_OFFSET) + block.result_scanned,
        row.min_offset,
        row.max_offset,
        suggested_broker(block, reader),
        body_size,
    )
    block.replies_bytes = used + head + body_size
    count_delivery(block, reader)
    return state.STOP_DONE
