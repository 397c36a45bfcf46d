"""A broker with names and bodies that pages must survive, and consoles of it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from console_process import ConsoleProcess
from reput.client import Message, Producer, blocking
from reput.client.admin import Admin
from reput.client.core import requests
from reput.console import users
from reput.format import headers
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode
from reput.testing import LocalBroker

EVIL = "<script>document.title='owned'</script><img/src=x/onerror=alert(1)>\"'&"
"""A tag, a key, a body and a property: without blanks, which separate keys."""
TOPIC, GROUP = "Orders", "billing"
WATCHERS = "watchers"
"""A group with a member."""
ORDER_COUNT = 60
MESSAGE_COUNT = ORDER_COUNT + 2
"""With a hostile and a binary one."""
LETTER_COUNT = 3
CONSUMER_OFFSETS = {0: 10, 1: 5}
"""Progress of the group, by queue id."""
START_S = 60.0
PAUSE = threading.Event()  # never set
SMALL_TOPICS = [f"shop-{number:03}" for number in range(130)]
"""Topics that fill more than two pages of a list."""
PASSWORDS = {"ann": "correct horse", "rob": "battery staple"}
LOGIN = ("ann", PASSWORDS["ann"])
ROLES = {"ann": "admin", "rob": "reader"}


@dataclass(frozen=True)
class Site:
    """A broker and its consoles."""

    broker: LocalBroker
    users: Path
    """The users file."""
    read_only: ConsoleProcess
    """Without users, without changes."""
    operating: ConsoleProcess
    """With users, and ``--allow operate``."""
    message: str
    """The page of the message with hostile contents, below ``messages/``."""
    member: str
    """The page of the member of ``WATCHERS``, below ``members/``."""

    def url(self, page: str) -> str:
        """Return the URL of a page of the read-only console."""
        path = page.replace("{message}", self.message).replace("{member}", self.member)
        return self.read_only.url + path

    def console(self, folder: Path, *options: str) -> ConsoleProcess:
        """Start another console with users and changes."""
        return _operating(self.broker, folder, self.users, *options)


def _operating(
    broker: LocalBroker, folder: Path, users_file: Path, *options: str
) -> ConsoleProcess:
    more = ("--allow", "operate", "--users", str(users_file))
    return ConsoleProcess(broker.namesrv_addr, folder, *more, *options)


@contextlib.contextmanager
def console_site(folder: Path) -> Iterator[Site]:
    """Start a broker with topics, messages, a group and dead letters, and two consoles."""
    topics = {TOPIC: 2, **dict.fromkeys(SMALL_TOPICS, 1)}
    with contextlib.ExitStack() as running:
        broker = running.enter_context(LocalBroker(topics=topics))
        asyncio.run(fill(broker))
        watcher = blocking.PushConsumer(
            WATCHERS, namesrv=broker.namesrv_addr, listener=lambda _messages, _context: None
        )
        running.enter_context(watcher).subscribe(SMALL_TOPICS[0])
        users_file = folder / "users"
        accounts = [users.make(name, ROLES[name], text) for name, text in PASSWORDS.items()]
        users.save(users_file, {account.user.name: account for account in accounts})
        settings = folder / "console.toml"
        settings.write_text(f'[stores.old]\npath = "{broker.store_folder}"\nlive = true\n')
        more = ("--config", str(settings))
        read_only = ConsoleProcess(broker.namesrv_addr, folder / "read-only", *more)
        running.enter_context(read_only)
        operating = running.enter_context(_operating(broker, folder / "operating", users_file))
        for console in (read_only, operating):
            until_known(console)
        (evil,) = [message for message in broker.messages(TOPIC) if message.body == EVIL.encode()]
        (member,) = read_only.json(f"groups/{WATCHERS}")["members"]
        yield Site(
            broker,
            users_file,
            read_only,
            operating,
            f"{evil.message_id}?topic={TOPIC}",
            f"{quote(member['client_id'], safe='')}?stacks=1",
        )


def until_known(console: ConsoleProcess) -> None:
    """Wait until a console has asked the broker for the queues and the progress of the group."""
    deadline = time.monotonic() + START_S
    while True:
        topics = console.json(f"topics?q={TOPIC}", LOGIN)["rows"]
        groups = console.json(f"groups?q={GROUP}", LOGIN)["rows"]
        if [topic["messages"] for topic in topics] == [MESSAGE_COUNT] and [
            isinstance(group["lag"], int) for group in groups
        ] == [True]:
            return
        assert time.monotonic() < deadline, (topics, groups)
        PAUSE.wait(0.1)


async def fill(broker: LocalBroker) -> None:
    """Send messages, commit consumer offsets of a group, and make three dead letters."""
    async with Producer("shop", namesrv=broker.namesrv_addr) as producer:
        for number in range(ORDER_COUNT):
            # fmt: off
            await producer.send(Message(
                TOPIC, b'{"order": %d}' % number, tags="Paid", keys=f"order-{number} all",
            ))
            # fmt: on
        await producer.send(
            Message(TOPIC, EVIL.encode(), tags=EVIL, keys=EVIL, properties={"note": EVIL})
        )
        await producer.send(Message(TOPIC, bytes(range(256)), tags="Binary", keys="binary"))
    async with Admin(broker.namesrv_addr) as admin:
        await admin.create_group(GROUP)
        for message in broker.messages(TOPIC)[:LETTER_COUNT]:
            header = headers.SendBackHeader(
                offset=message.physical_offset, group=GROUP, delay_level=-1,
                origin_msg_id=message.message_id, origin_topic=TOPIC, unit_mode=False,
                max_reconsume_times=16,
            )  # fmt: skip
            request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await admin.calls.ask(broker.broker_addr, request)
    await commit(broker, CONSUMER_OFFSETS)


async def commit(broker: LocalBroker, consumer_offsets: Mapping[int, int]) -> None:
    """Set consumer offsets of the group, by queue id."""
    async with Admin(broker.namesrv_addr) as admin:
        for queue_id, consumer_offset in consumer_offsets.items():
            queue = MessageQueue(TOPIC, "broker-a", queue_id)
            await admin.update_consumer_offset(GROUP, queue, consumer_offset)


async def committed(broker: LocalBroker) -> dict[int, int | None]:
    """Return the consumer offsets of the group, by queue id."""
    async with Admin(broker.namesrv_addr) as admin:
        return {
            queue_id: await admin.consumer_offset(GROUP, MessageQueue(TOPIC, "broker-a", queue_id))
            for queue_id in CONSUMER_OFFSETS
        }
