"""The numbered steps of pages in docs/journeys happen, in their order.

A scenario runs what a section follows, with a profiler that records each function below ``src``.
The names in the steps must be entered in the order of the page; a class counts as entered with any
of its methods. Kernels are compiled, and constants are not entered: they are left out. So are the
steps in ``other``, which need another configuration than the scenario.
"""

import ast
import dataclasses
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import replica_requests as requests
from asgi import call
from console_forms import confirmation, hidden_fields
from controller_subject import ControllerSubject
from ports import free_port_of_broker
from reput.broker.access.acls import subject_of
from reput.broker.access.policy import Acl, Rule
from reput.broker.access.user_rules import UserRules
from reput.broker.access.users import User
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.client.admin import Admin
from reput.clock import ManualClock, SystemClock
from reput.console.app import Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts
from reput.format import bodies, headers
from reput.format.access import Action, Decision, parse_resource
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import SubjectHeader
from reput.format.signing import Credentials, Signer
from reput.grpc.server import FrontServer
from reput.secret import Secret
from reput.store.config import BrokerRole, FlushDiskType
from reput.store.writing import retention
from reput.store.writing.incoming import IncomingMessage
from reput.testing import LocalBroker
from scripts import count_journeys as journeys
from store_fixture import START_MS, Stores, needs_kernels
from waiting import until

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "reput"
PAGES = ROOT / "docs" / "journeys"
WAIT_S = 20

Name = tuple[str, str]
"""Path of a module below the package, and a qualified name in it."""

# --- pages and calls ------------------------------------------------------------


def numbered(page: str, heading: str) -> list[Name]:
    """Return the functions and classes in the numbered steps of a section, without kernels."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    section = re.search(
        rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert section is not None, f"{page}.md has no section {heading!r}"
    steps = re.findall(r"^\d+\. .*(?:\n +.*)*", section[1], re.MULTILINE)
    pairs = re.findall(r"`([\w./]+\.py)`\s+`([A-Za-z_][\w.]*)`", "\n".join(steps))
    return [(path, name) for path, name in pairs if "/kernels/" not in path and not name.isupper()]


def skipped(calls: Sequence[Name], names: Sequence[Name]) -> list[Name]:
    """Return the names that are not entered after those before them."""
    missing = []
    position = 0
    for path, name in names:
        for number in range(position, len(calls)):
            called_path, called = calls[number]
            if called_path == path and (called == name or called.startswith(f"{name}.")):
                position = number + 1
                break
        else:
            missing.append((path, name))
    return missing


class Calls:
    """The functions below a folder that this thread enters, and threads that it starts.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path = PACKAGE) -> None:
        self._prefix = f"{folder}/"
        self.entered: list[Name] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record calls, in order; those of before are forgotten."""
        self.entered.clear()
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._prefix):
            path = code.co_filename[len(self._prefix) :]
            self.entered.append((path, code.co_qualname))

    def check(self, page: str, *sections: str, other: Sequence[str] = ()) -> None:
        """Check that the steps of sections of a page were entered in their order.

        Args:
            page: The page.
            *sections: Its sections, without the marks of headings.
            other: Names in the steps that the scenario does not reach.
        """
        names = [name for heading in sections for name in numbered(page, heading)]
        assert {*other} <= {name for _, name in names}, "a name is not on the page"
        expected = [(path, name) for path, name in names if name not in other]
        assert len(expected) > 1
        assert skipped(self.entered, expected) == []


# --- the checks themselves ------------------------------------------------------


def test_steps_must_be_entered_in_order() -> None:
    calls = [("a.py", "f"), ("b.py", "C.__init__"), ("b.py", "C.m"), ("a.py", "g")]
    assert skipped(calls, [("a.py", "f"), ("b.py", "C"), ("b.py", "C.m"), ("a.py", "g")]) == []
    assert skipped(calls, [("a.py", "g"), ("a.py", "f")]) == [("a.py", "f")]
    assert skipped(calls, [("b.py", "f"), ("a.py", "f")]) == [("b.py", "f")]
    assert skipped(calls, [("a.py", "f"), ("a.py", "f")]) == [("a.py", "f")], "entered once"


def test_the_names_of_steps() -> None:
    names = numbered("send", "The fast path")
    assert ("broker/fastpath/send_ingest.py", "SendIngest.receive") in names
    assert ("store/writing/putting.py", "Putter") in names
    assert all("kernels" not in path for path, _ in names)


# --- sends and pulls ------------------------------------------------------------


@needs_kernels
async def test_send(tmp_path: Path) -> None:
    calls = Calls()
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with journeys._broker(tmp_path, **sync) as broker, open_to(broker) as client:
        with calls.recorded():
            await client.ask(journeys.send_request())  # makes the topic
            await client.ask(journeys.send_request())
        calls.check("send", "The fallback")
        calls.check("send", "The reply")
        with calls.recorded():
            await client.ask(journeys.send_request())
            # a new queue, which the kernel stops for
            other = journeys.send_request()
            other.ext_fields = {**(other.ext_fields or {}), "e": "1"}
            await client.ask(other)
        calls.check("send", "Into the broker", "The fast path")


@needs_kernels
async def test_pull(tmp_path: Path) -> None:
    calls = Calls()
    async with journeys._broker(tmp_path) as broker, open_to(broker) as client:
        await client.ask(journeys.send_request())  # makes the topic
        pull = journeys.pull_request()
        with calls.recorded():
            await client.ask(pull)
        # of SQL92; a class whose methods are not needed for all tags
        calls.check("pull", "The first pull of a group", other=["Filters", "Selection"])
        with calls.recorded():
            await client.ask(pull)
            broker.parts.deliveries.consumer_offsets.all()
            broker.parts.topics.notify(journeys.TOPIC)
        calls.check("pull", "The next pulls: the fast path")
        with calls.recorded():
            async with open_to(broker) as producer:
                client.writer.write(journeys.commands.encode(held_pull(1, 20_000)))
                await until(lambda: len(broker.parts.held_pulls) > 0)
                await producer.ask(journeys.send_request())
            await client.reply()
            await client.ask(held_pull(2, 1))
        calls.check("pull", "No messages: long polling", other=["HeldPull"])  # has no methods


def held_pull(queue_offset: int, hold_ms: int) -> Command:
    """Return a pull that may be held."""
    request = journeys.pull_request()
    request.ext_fields = {
        **(request.ext_fields or {}),
        "queueOffset": str(queue_offset),
        "suspendTimeoutMillis": str(hold_ms),
        "sysFlag": "6",
    }
    return request


# --- a broker and 5.x clients ---------------------------------------------------


@needs_kernels
async def test_grpc_send(tmp_path: Path) -> None:
    calls = Calls()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(journeys._broker(tmp_path))
        front = FrontServer(broker, 0)
        await front.start()
        stack.push_async_callback(front.stop)
        remoting = await stack.enter_async_context(open_to(broker))
        await remoting.ask(journeys.send_request())  # makes the topic
        client = await stack.enter_async_context(journeys.Connection.open(front.port))
        client.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + journeys._frame(4, 0, 0, b""))
        await exchange(client, range(1))
        with calls.recorded():
            await exchange(client, range(1, 2))
        # the call does not wait, and the broker does not hold back its reply
        late = ("BegunWork", "InnerChannel._read_late")
        calls.check("grpc-send", "A call", "To the broker and back", other=late)
        await exchange(client, range(2, 40))
        with calls.recorded():
            # the kernel leaves a topic that has not been learned
            other = journeys._grpc_call(81, 40).replace(b"journeys", b"Journeys")
            await exchange(client, range(41, 43), other)
        calls.check("grpc-send", "Many calls of a connection", other=["FastCalls.learn"])


async def exchange(client: journeys.Connection, numbers: range, more: bytes = b"") -> None:
    """Make calls in one write, and wait for all replies."""
    first = b"".join(journeys._grpc_call(2 * number + 1, number) for number in numbers)
    client.writer.write(more + first)
    for _ in range(len(numbers) + bool(more)):
        while await client.frame() != (1, 5):  # trailers
            pass


def open_to(broker: Broker) -> Any:
    """Return a context with a connection to a broker."""
    return journeys.Connection.open(broker.identity.port)


# --- a pair ---------------------------------------------------------------------


async def test_replication(tmp_path: Path) -> None:
    calls = Calls()
    async with pair(tmp_path) as (master, slave):
        await send_until_copied(master, slave)
    with calls.recorded():
        async with pair(tmp_path) as (master, slave):
            await until(lambda: bool(master.parts.replication.slave_port.slaves))
    calls.check("replication", "A slave finds its master")
    async with pair(tmp_path) as (master, slave):
        await until(lambda: bool(master.parts.replication.slave_port.slaves))
        with calls.recorded():
            await send_until_copied(master, slave)
            await send_until_copied(master, slave)
        calls.check("replication", "A message")


@asynccontextmanager
async def pair(root: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """Run a SYNC_MASTER, whose sends wait for its slave, and the slave."""
    sync_master = {"broker_role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
    plain = journeys._broker(root / "master", **sync_master).settings
    # From the address of the port for slaves follows that of the port before, for requests.
    port = free_port_of_broker()
    config = dataclasses.replace(plain.broker, listen_port=port)
    async with Broker(config, plain.store) as master:
        address = f"127.0.0.1:{port + 1}"
        following = {"broker_role": BrokerRole.SLAVE, "ha_master_address": address}
        async with journeys._broker(root / "slave", broker_id=1, **following) as slave:
            yield master, slave


async def send_until_copied(master: Broker, slave: Broker) -> None:
    """Send a message, and wait until the slave has dispatched it."""
    async with open_to(master) as connection:
        await connection.ask(journeys.send_request())
    end = master.store.max_physical_offset
    await until(lambda: slave.store.dispatcher.dispatched_offset == end)


# --- access control -------------------------------------------------------------

SUPER = Credentials("root", Secret("word of root"))
ALICE = Credentials("alice", Secret("word of alice"))


@needs_kernels
async def test_access(tmp_path: Path) -> None:
    calls = Calls()
    access = AccessSettings(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=Secret('{"username":"root","password":"word of root"}'),
    )
    plain = journeys._broker(tmp_path)
    async with AsyncExitStack() as stack:
        broker = Broker(plain.settings.broker, plain.settings.store, access=access)
        await stack.enter_async_context(broker)
        admin = await stack.enter_async_context(open_to(broker))
        client = await stack.enter_async_context(open_to(broker))
        await admin.ask(Signer(SUPER).sign(journeys.send_request()))  # makes the topic
        rules = broker.parts.access.rules if broker.parts.access is not None else None
        assert isinstance(rules, UserRules)
        rules.users.put(User(ALICE.access_key, ALICE.secret_key))
        give(rules, "Topic:journeys", Action.PUB, Action.SUB)
        give(rules, "Group:consumers", Action.SUB)
        with calls.recorded():
            await client.ask(Signer(ALICE).sign(journeys.send_request()))
        calls.check("access", "The first request of its kind")
        with calls.recorded():
            reply = await client.ask(Signer(ALICE).sign(settings_request()))
        assert "no permission" in (reply.remark or "")
        calls.check("access", "A request without a grant")
        held = held_pull(broker.store.max_offset(journeys.TOPIC, 0), 20_000)
        client.writer.write(journeys.commands.encode(Signer(ALICE).sign(held)))
        await until(lambda: len(broker.parts.held_pulls) > 0)
        with calls.recorded():
            await admin.ask(Signer(SUPER).sign(deny("Topic:journeys")))
            await client.reply()
            await client.ask(Signer(ALICE).sign(journeys.send_request()))
        other = ["PlainControl.reload", "Grant"]  # files of 1.0; a class without methods
        calls.check("access", "A change of the rules", other=other)


def give(rules: UserRules, resource: str, *actions: Action) -> None:
    """Add a rule of alice."""
    known = rules.acls.get(subject_of("alice")) or Acl()
    rule = Rule(parse_resource(resource), frozenset(actions), Decision.ALLOW)
    rules.acls.put(subject_of("alice"), known._replace(custom=(*known.custom, rule)))


def settings_request() -> Command:
    """Return a request for the settings of the broker."""
    return Command(RequestCode.GET_BROKER_CONFIG, ext_fields={})


def deny(resource: str) -> Command:
    """Return a request that denies a resource to alice."""
    entry = bodies.PolicyEntryInfo(resource=resource, actions=["Sub"], decision="Deny")
    policy = bodies.PolicyInfo(policy_type="Custom", entries=[entry])
    subject = subject_of("alice")
    return Command(
        RequestCode.AUTH_UPDATE_ACL,
        ext_fields=headers.encode(SubjectHeader(subject=subject)),
        body=bodies.encode(bodies.AclInfo(subject=subject, policies=[policy])),
    )


# --- the console ----------------------------------------------------------------

FORM = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}


async def test_console(tmp_path: Path) -> None:
    calls = Calls()
    clock = SystemClock()
    async with LocalBroker(topics={"Orders": 2}) as mq, Admin(mq.namesrv_addr) as admin:
        with calls.recorded():
            cluster = WatchedCluster.of(admin, clock)
            audit = AuditLog(tmp_path / "audit.jsonl")
            parts = ConsoleParts(clock, mq.namesrv_addr, cluster, audit, may_operate=True)
            console = Console(parts)
            await cluster.collector.round()
            for _ in range(3):
                for facts in cluster.snapshot.masters():
                    await cluster.collector.sweep_step(facts)
            cluster.rows.topics()
        # the command, and the server of its socket
        calls.check("console", "Facts", other=["console", "serve"])
        with calls.recorded():
            assert (await call(console, "/topics")).status == 200
            assert (await call(console, "/topics/Orders")).status == 200
        calls.check("console", "A page", other=["Unknown"])
        page = (await call(console, "/topics")).text
        csrf = hidden_fields(page)["csrf"]
        with calls.recorded():
            await confirmed(console, "/topics", {"name": "Fresh", "queues": "3", "csrf": csrf})
        calls.check("console", "A change")
        assert [entry.outcome for entry in audit.newest()] == ["done"]


async def confirmed(console: Console, url: str, form: dict[str, str]) -> None:
    """Make a change of the console, and confirm its preview."""
    preview = await call(console, url, method="POST", headers=FORM, form=form)
    again = {**confirmation(preview.text), "csrf": form["csrf"]}
    done = await call(console, url, method="POST", headers=FORM, form=again)
    assert done.status == 200


# --- the store ------------------------------------------------------------------


def message(key: str = "k", topic: str = "Orders") -> IncomingMessage:
    """Return a message of some KiB."""
    return IncomingMessage(topic, bytes(4000), 0, f"KEYS\x01{key}\x02".encode())


def test_written_and_committed(stores: Stores) -> None:
    calls = Calls()
    with calls.recorded():
        store = stores.open("mapped")
        store.put(message())
        assert store.log.written_offset > 0
        store.step()
    calls.check("flush-and-commit", "Written", other=["CommitLog.reserve"])  # it was in time
    clock = ManualClock(START_MS)
    with calls.recorded():
        store = stores.open(
            "pooled", clock=clock, transient_store_pool_enable=True, transient_store_pool_size=1
        )
        store.put(message())
        assert store.log.readable_offset < store.log.written_offset
        clock.advance(1_000)
        store.step()
        assert store.log.readable_offset == store.log.written_offset
        while len(store.log.files.files) < 2:
            store.put(message())
    calls.check("flush-and-commit", "Committed: only with the pool")


async def test_flushed_and_dispatched(tmp_path: Path) -> None:
    calls = Calls()
    with calls.recorded():
        sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
        async with journeys._broker(tmp_path, **sync) as broker, open_to(broker) as client:
            for _ in range(3):
                await client.ask(journeys.send_request())
    calls.check("flush-and-commit", "Flushed")
    # a record that needs Python
    calls.check("broker-dispatch", "After the put", other=["Dispatcher.put_slowly"])
    # pops of a lite topic
    calls.check("broker-dispatch", "The requests that wait", other=["LitePops.arrived"])


def test_the_checkpoint(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock)
    store.put(message())
    store.step()
    calls = Calls()
    with calls.recorded():
        clock.advance(store.config.flush_consume_queue_thorough_interval)
        while store.step():
            pass
        clock.advance(1_000)
        store.step()
    calls.check("flush-and-commit", "Queues, index and checkpoint")
    assert store.checkpoint.fields.queue_timestamp == START_MS


def test_expiry(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock, delete_when=";".join(f"{hour:02}" for hour in range(24)))
    while len(store.log.files.files) < 3:
        store.put(message())
    store.step()
    first = store.log.files.files[0].path
    os.utime(first, (START_MS / 1000 - 100 * 3_600, START_MS / 1000 - 100 * 3_600))
    calls = Calls()
    with calls.recorded():
        for _ in range(10):
            clock.advance(retention.FIRST_ROUND_MS)
            while store.step():
                pass
    assert not Path(first).exists()
    # no archive is required, and no reader holds the file
    calls.check("expiry", "Which file", other=["is_archived"])
    calls.check("expiry", "The log file", other=["MappedFile.release"])
    calls.check("expiry", "What follows from the log", other=["RetentionCounts"])


@needs_kernels
def test_dispatch_in_the_same_pass(stores: Stores) -> None:
    calls = Calls()
    with calls.recorded():
        store = stores.open()
        store.put(message())
    # a record that needs Python
    other = ["Dispatcher.deferring_failures"]
    calls.check("broker-dispatch", "In the same pass as the put", other=other)
    assert store.max_offset("Orders", 0) == 1


def test_recovery(stores: Stores) -> None:
    calls = Calls()
    store = stores.open()
    store.put(message())
    with calls.recorded():
        store.close()
        stores.open()
    calls.check("recovery", "Read the folder")


# --- threads --------------------------------------------------------------------


def test_every_thread_of_a_broker_is_on_its_page() -> None:
    text = (PAGES / "threads.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `([\w-]+)`", text, re.MULTILINE))
    started: set[str] = set()
    for folder in ("broker", "store", "remoting"):
        for file in (PACKAGE / folder).rglob("*.py"):
            source = file.read_text("utf-8")
            started |= set(re.findall(r'\bname=f?"((?:reput-|rebuild-)[\w-]*)', source))
            started |= set(re.findall(r'(?:WorkerThread|sync_thread)\("([\w-]+)"', source))
    assert listed == {name if name[-1] != "-" else f"{name}1" for name in started}


def test_every_task_of_a_broker_is_on_its_page() -> None:
    text = (PAGES / "threads.md").read_text("utf-8").partition("\n## The loops\n")[2]
    listed = re.findall(r"^\| (\w+) \| [^|]*`", text, re.MULTILINE)
    tree = ast.parse((PACKAGE / "broker" / "loops.py").read_text("utf-8"))
    (start,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "start"
    )
    keys = [
        key.value
        for node in ast.walk(start)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    ]
    assert listed == [*keys, "access"]


# --- failover -------------------------------------------------------------------


async def test_failover(tmp_path: Path) -> None:
    calls = Calls()
    async with ControllerSubject(tmp_path) as subject:
        first, second = subject.replica(1), subject.replica(2)
        with calls.recorded():
            await first.ask(requests.next_id())
            await first.join()
            await first.ask(requests.elect(1))
        # In a thread that has started before.
        calls.check("failover", "A broker joins", other=["Disk.replace"])
        await second.join()
        await first.ask(requests.alter(1, 1, [1, 2], 1))
        with calls.recorded():
            await first.client.close()
            await subject.until_info("2", 2, [2])
        # A timeout that is over; what the new master asks for when the others have caught up.
        calls.check("failover", "A master dies", other=["Elections.run", "alter_in_sync"])


async def test_a_member_of_a_replica_group(tmp_path: Path) -> None:
    calls = Calls()
    async with ControllerSubject(tmp_path) as subject, AsyncExitStack() as stack:

        async def start(name: str) -> Broker:
            plain = journeys._broker(tmp_path / name, all_ack_in_sync_state_set=True).settings
            config = dataclasses.replace(
                plain.broker,
                broker_ip2="127.0.0.1",
                enable_controller_mode=True,
                controller_addr=subject.address,
            )
            store = dataclasses.replace(plain.store, ha_listen_port=0)
            return await stack.enter_async_context(Broker(config, store))

        with calls.recorded():
            master = await start("first")
            await until(lambda: master.identity.is_master and master.store.in_sync is not None)
            await start("second")
            await until(lambda: len(master.store.in_sync.members) == 2)
            async with open_to(master) as connection:
                await connection.ask(journeys.send_request())
        # In threads that have started before.
        files = ["IdentityFiles.write_application", "IdentityFiles.write_id"]
        calls.check("replica-group", "A broker as a member", other=files)
