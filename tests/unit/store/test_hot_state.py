"""Rows keep their addresses while the tables around them grow."""

import pytest

import seeds
from reput.format import names
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, tables

# Rows by the kernels' own lookup.


def find(hot: HotState, topic: str, queue_id: int) -> int:
    """Return the address of a queue's row as kernels look it up, 0 if there is none."""
    row = tables.topic_row(hot.block, topic.encode())
    queue = tables.queue_row(row, queue_id) if row is not None else None
    return queue.address if queue is not None else 0


def test_each_queue_is_found_while_tables_grow() -> None:
    hot = HotState()
    rows = {}
    for number in range(1000):
        topic, queue_id = f"topic-{number % 700}", number % 19
        rows[topic, queue_id], _ = hot.add_queue(topic.encode(), queue_id)
    assert {queue: find(hot, *queue) for queue in rows} == rows
    assert hot.block.topic_slots > 2 * 700
    assert find(hot, "topic-0", 18) == 0
    assert find(hot, "topic-700", 0) == 0


def test_a_dropped_queue_is_not_found_and_its_row_is_used_again() -> None:
    hot = HotState()
    address, words = hot.add_queue(b"T", 3)
    kept, _ = hot.add_queue(b"T", 0)
    words.max_offset = 7
    hot.drop_queue(b"T", 3, words)
    assert (find(hot, "T", 3), find(hot, "T", 0)) == (0, kept)
    again, words = hot.add_queue(b"U", 1)
    assert again == address
    assert words.max_offset == 0


def test_a_dropped_topic_hides_no_other_one() -> None:
    hot = HotState()
    topics = [f"t{number}" for number in range(100)]
    rows = {topic: hot.add_queue(topic.encode(), 0)[1] for topic in topics}
    for topic in topics[::2]:
        hot.drop_queue(topic.encode(), 0, rows[topic])
        hot.drop_topic(topic.encode())
    expected = [0 if number % 2 == 0 else rows[t].address for number, t in enumerate(topics)]
    assert [find(hot, topic, 0) for topic in topics] == expected


@pytest.mark.parametrize(
    ("topic", "is_slow", "kind"),
    [
        ("T", False, state.KIND_PLAIN),
        (names.SCHEDULE_TOPIC, False, state.KIND_SCHEDULE),
        (names.SCHEDULE_TOPIC, True, state.KIND_SLOW),
    ],
)
def test_a_topic_has_its_dispatcher(topic: str, is_slow: bool, kind: int) -> None:
    hot = HotState(is_slow=is_slow)
    assert hot.topic(topic.encode()).words.kind == kind


def test_a_topic_has_the_prefix_hash_of_its_keys() -> None:
    # "TopicA#k1".hashCode() is -1903240649 in Java.
    value = HotState().topic(b"TopicA").words.hash
    for letter in b"k1":
        value = (31 * value + letter) & 0xFFFFFFFF
    assert value - (1 << 32) == -1903240649


def test_lists_contain_all_rows() -> None:
    hot = HotState()
    rows = [hot.add_queue(b"T", number)[0] for number in range(3000)]
    for address in rows:
        hot.mark_dirty(address)
        hot.mark_touched(address)
    assert hot.dirty_rows() == rows
    hot.set_dirty_rows(rows[:5])
    assert hot.dirty_rows() == rows[:5]
    hot.take_off_lists(set(rows[1:]))
    assert hot.dirty_rows() == rows[:1]
    assert hot.take_touched_rows() == rows[:1]
    assert hot.take_touched_rows() == []


def test_visited_rows_follow_the_others_of_a_round() -> None:
    hot = HotState()
    rows = [hot.add_queue(b"T", number)[0] for number in range(10)]
    for address in rows:
        hot.mark_dirty(address)
    assert hot.first_dirty_rows(4) == rows[:4]
    assert hot.first_dirty_rows(99) == rows
    hot.put_off_dirty_rows(4, 7, [rows[1], rows[3]])
    assert hot.dirty_rows() == [*rows[4:7], rows[1], rows[3], *rows[7:]]
    hot.put_off_dirty_rows(8, 8, [])
    assert hot.dirty_rows() == []


@pytest.mark.parametrize("seed", range(5))
def test_topics_are_found_after_any_others_were_dropped(seed: int) -> None:
    """A dropped topic moves its neighbours in the table, and nothing else."""
    chance = seeds.random("hot state", seed)
    hot_state = HotState()
    known: set[bytes] = set()
    for number in range(3_000):
        if known and chance.random() < 0.45:
            name = chance.choice(sorted(known))
            hot_state.drop_topic(name)
            known.remove(name)
        else:
            name = f"T{chance.randrange(400)}".encode()
            hot_state.topic(name)
            known.add(name)
        if number % 100 == 0:
            for each in range(400):
                name = f"T{each}".encode()
                row = tables.topic_row(hot_state.block, name)
                assert (row is not None) == (name in known)


# --- put counts ----------------------------------------------------------------------------


def test_puts_are_reported_once_and_only_for_topics_with_puts() -> None:
    hot_state = HotState()
    names = [b"T%d" % number for number in range(10_000)]  # rows of several chunks
    rows = {name: hot_state.topic(name).words for name in names}
    assert [*hot_state.put_news()] == []
    for name, messages, size in ((b"T0", 3, 300), (b"T9999", 1, 70), (b"T5000", 2, 150)):
        rows[name].message_count += messages
        rows[name].byte_count += size
    assert sorted(hot_state.put_news()) == [
        (b"T0", 3, 300), (b"T5000", 2, 150), (b"T9999", 1, 70),
    ]  # fmt: skip
    assert [*hot_state.put_news()] == []
    rows[b"T0"].message_count += 1
    rows[b"T0"].byte_count += 9
    assert [*hot_state.put_news()] == [(b"T0", 1, 9)]


def test_a_recreated_topic_begins_at_zero() -> None:
    hot_state = HotState()
    words = hot_state.topic(b"T").words
    words.message_count, words.byte_count = 5, 500
    assert [*hot_state.put_news()] == [(b"T", 5, 500)]
    hot_state.drop_topic(b"T")
    assert [*hot_state.put_news()] == []
    words = hot_state.topic(b"U").words  # at the same address
    words.message_count, words.byte_count = 5, 500
    assert [*hot_state.put_news()] == [(b"U", 5, 500)]
