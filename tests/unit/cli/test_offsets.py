"""``reput offset`` against a broker: previews change nothing, receipts have the new offsets."""

import pytest

from reput.client import Message, MessageQueue, blocking
from reput.testing.local_broker import LocalBroker
from wire_command import Command

RESET = ("offset", "reset", "Billing", "Orders")


@pytest.fixture
def queues(rocketmq: LocalBroker) -> list[MessageQueue]:
    """Two queues with four messages each, of which a group has consumed three."""
    rocketmq.create_topic("Orders", queues=2)
    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        for _ in range(8):
            producer.send(Message("Orders", b"x"))
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        subscribed = list(admin.topic_route("Orders").subscribe_queues)
        for queue in subscribed:
            admin.update_consumer_offset("Billing", queue, 3)
    return subscribed


def offsets(rocketmq: LocalBroker, queues: list[MessageQueue], group: str) -> list[int | None]:
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        return [admin.consumer_offset(group, queue) for queue in queues]


def test_show(command: Command, queues: list[MessageQueue]) -> None:
    shown = command.json("offset", "show", "Billing", "Orders")["queues"]
    assert len(shown) == len(queues)
    assert shown[1] == {
        "broker_name": "broker-a",
        "queue_id": 1,
        "min_offset": 0,
        "max_offset": 4,
        "consumer_offset": 3,
        "lag": 1,
    }


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 4),
        (("--to", "1"), 1),
        (("--to", "99"), 4),
        (("--time", "0"), 0),
        (("--time", "2100-01-01"), 4),
    ],
)
def test_reset_previews_without_yes(
    command: Command,
    rocketmq: LocalBroker,
    queues: list[MessageQueue],
    where: tuple[str, str],
    wanted: int,
) -> None:
    preview = command.json(*RESET, *where)
    assert not preview["is_done"]
    assert [(queue["before"], queue["wanted"]) for queue in preview["queues"]] == [(3, wanted)] * 2
    assert "--yes makes the change" in command.notes
    assert offsets(rocketmq, queues, "Billing") == [3, 3]
    receipt = command.json(*RESET, *where, "--yes")
    assert [queue["after"] for queue in receipt["queues"]] == [wanted] * 2
    assert offsets(rocketmq, queues, "Billing") == [wanted] * 2


def test_reset_to_a_time(
    command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]
) -> None:
    stored = rocketmq.messages("Orders")
    moment = stored[4].store_timestamp_ms
    expected = [
        sum(m.store_timestamp_ms < moment for m in stored if m.queue_id == queue.queue_id)
        for queue in queues
    ]
    command(*RESET, "--time", moment, "--yes")
    assert offsets(rocketmq, queues, "Billing") == expected


def test_reset_of_one_queue(
    command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]
) -> None:
    command(*RESET, "--to", "1", "--queue", "broker-a:1", "--yes")
    assert offsets(rocketmq, queues, "Billing") == [3, 1]


def test_a_group_with_members_is_reset_through_them(
    command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]
) -> None:
    assert queues
    with blocking.PullConsumer("Billing", namesrv=rocketmq.namesrv_addr) as member:
        member.subscribe("Orders")
        seen = [message.queue_offset for _ in range(2) for message in member.poll(32, 20_000)]
        assert seen == [3, 3]
        refusal = command.complaint(*RESET, "--to", "1", "--yes")
        assert "1 members" in refusal
        receipt = command.json(*RESET, "--to", "earliest", "--yes")
        assert [queue["after"] for queue in receipt["queues"]] == [0, 0]
        seen = []
        while len(seen) < 8:
            messages = member.poll(32, 20_000)
            assert messages
            seen += [message.queue_offset for message in messages]
        assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_members_that_pop_are_reset(
    command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]
) -> None:
    assert queues
    with blocking.PopConsumer("Billing", namesrv=rocketmq.namesrv_addr) as member:
        member.subscribe("Orders")
        for begin in (3, 0, 0):  # before a reset, after one, and after one to the same offset
            seen: list[int] = []
            while len(seen) < 2 * (4 - begin):
                messages = member.pop(32, 20_000)
                assert messages
                for message in messages:
                    seen.append(message.queue_offset)
                    member.ack(message)
            assert sorted(seen) == sorted([*range(begin, 4)] * 2)
            receipt = command.json(*RESET, "--to", "earliest", "--yes")
            assert [queue["after"] for queue in receipt["queues"]] == [0, 0]


def test_clone(command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]) -> None:
    clone = ("offset", "clone", "Billing", "Copy", "Orders", "--create")
    assert not command.json(*clone)["is_done"]
    receipt = command.json(*clone, "--yes")
    assert [queue["after"] for queue in receipt["queues"]] == [3, 3]
    assert offsets(rocketmq, queues, "Copy") == [3, 3]


def test_an_unknown_group_gets_no_offsets(
    command: Command, rocketmq: LocalBroker, queues: list[MessageQueue]
) -> None:
    command("group", "create", "Accounting")
    command("offset", "show", "Accounting", "Orders")  # known, but without offsets
    to_end = ("Orders", "--to", "latest", "--yes")
    refusal = command.complaint("offset", "reset", "Acounting", *to_end)
    assert "no broker knows group 'Acounting'; did you mean 'Accounting'?" in refusal
    assert "--create" in refusal
    for arguments in (
        ("show", "Acounting", "Orders"),
        ("clone", "Acounting", "Billing", "Orders"),
        ("clone", "Billing", "Acounting", "Orders", "--yes"),
    ):
        assert "no broker knows group 'Acounting'" in command.complaint("offset", *arguments)
    command("offset", "reset", "Acounting", *to_end, "--create")
    assert offsets(rocketmq, queues, "Acounting") == [4, 4]
    command("offset", "show", "Acounting", "Orders")  # its offsets make it known


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["reset", "Billing", "Orders"], "give one of --to and --time"),
        (["reset", "Billing", "Orders", "--to", "x"], "earliest, latest, or a queue offset"),
        (["reset", "Billing", "Orders", "--time", "x"], "a time like"),
        (["reset", "Billing", "Nothing", "--to", "latest"], "no topic 'Nothing'"),
        (["show", "Billing", "Nothing"], "no topic 'Nothing'"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("offset", *arguments)
