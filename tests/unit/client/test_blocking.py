import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from reput import client
from reput.client import blocking
from reput.client.admin import Admin
from reput.client.blocking import Facade, LoopThread
from reput.client.instance import NotStarted
from reput.client.message import Message
from reput.client.pop_consumer import PopConsumer
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer
from reput.client.transaction_producer import TransactionProducer
from reput.errors import InvalidOption
from reput.format.bodies import MessageQueue
from scripted_cluster import ScriptedCluster


class Server:
    """A scripted cluster in a separate event loop."""

    def __init__(self) -> None:
        self.thread = LoopThread()
        self.cluster = self.thread.wait_for(self._start())

    async def _start(self) -> ScriptedCluster:
        return await ScriptedCluster({"T": {"broker-a": 4}}).__aenter__()

    def close(self) -> None:
        self.thread.wait_for(self.cluster.__aexit__())
        self.thread.stop()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    server = Server()
    yield server.cluster
    server.close()


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_blocking_producer_sends(cluster: ScriptedCluster) -> None:
    with blocking.Producer("P", namesrv=cluster.namesrv) as producer:
        assert producer.send(Message("T", b"x")).queue_offset == 0
        assert len(producer.send_many([Message("T", b"x")] * 50)) == 50
        assert producer.queues("T")[1] == MessageQueue("T", "broker-a", 1)
        with pytest.raises(InvalidOption, match="body"):
            producer.send(Message("T", b""))


def test_clients_share_a_thread_that_ends_with_the_last_client(cluster: ScriptedCluster) -> None:
    before = len(thread_names())
    first = blocking.Producer("P", namesrv=cluster.namesrv)
    second = blocking.Admin(cluster.namesrv)
    assert len(thread_names()) == before
    first.start()
    second.start()
    second.start()
    assert len(thread_names()) == before + 1
    first.close()
    first.close()
    assert len(second.topic_route("T").publish_queues) == 4
    second.close()
    assert len(thread_names()) == before


def test_threads_share_a_client(cluster: ScriptedCluster) -> None:
    with blocking.Producer("P", namesrv=cluster.namesrv) as producer, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: producer.send(Message("T", b"%d" % i)), range(200)))
    assert sorted(result.queue_offset for result in results) == list(range(200))


def test_calls_before_start_and_after_close_are_refused(cluster: ScriptedCluster) -> None:
    producer = blocking.Producer("P", namesrv=cluster.namesrv)
    with pytest.raises(NotStarted):
        producer.send(Message("T", b"x"))
    with producer:
        pass
    with pytest.raises(NotStarted):
        producer.send(Message("T", b"x"))


FORKING = """
import os, sys, warnings
from reput.client import Message, StartedElsewhere
from reput.client.blocking import LoopThread, Producer
from reput.testing import LocalBroker

warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
with LocalBroker(topics=["T"]) as mq, Producer("P", namesrv=mq.namesrv_addr) as producer:
    producer.send(Message("T", b"parent"))
    with LoopThread._lock:  # as if another thread started a client
        child = os.fork()
    if child == 0:
        try:
            for call in (lambda: producer.send(Message("T", b"x")), producer.start):
                try:
                    call()
                except StartedElsewhere as error:
                    assert f"started in process {os.getppid()}" in str(error), error
                else:
                    os._exit(3)
            producer.close()
            with Producer("P", namesrv=mq.namesrv_addr) as own:
                own.send(Message("T", b"child"))
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(4)
    _, status = os.waitpid(child, 0)
    producer.send(Message("T", b"parent again"))
    bodies = {message.body for message in mq.messages("T", at_least=3)}
    assert bodies == {b"parent", b"child", b"parent again"}, bodies
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_gets_an_error_and_can_start_its_own_client() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_client_that_fails_to_start_leaves_no_thread() -> None:
    class Broken:
        async def start(self) -> None:
            raise InvalidOption("x", 1, "2")

        async def close(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    before = thread_names()
    with pytest.raises(InvalidOption):
        Facade(Broken()).start()
    assert thread_names() == before


def test_a_blocking_call_in_the_loops_thread_is_refused(cluster: ScriptedCluster) -> None:
    with blocking.Producer("P", namesrv=cluster.namesrv) as producer:

        def select(queues: object, message: Message) -> MessageQueue:
            return producer.send(message).queue

        with pytest.raises(RuntimeError, match="own loop"):
            producer.send(Message("T", b"x"), queue=select)


async def test_a_call_that_stops_a_running_loop_is_a_warning(cluster: ScriptedCluster) -> None:
    producer = blocking.Producer("P", namesrv=cluster.namesrv)
    with pytest.warns(RuntimeWarning, match=r"use reput\.client\.Producer with `await`") as warned:
        producer.start()
    assert warned[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=r"asyncio\.to_thread"):
        producer.send(Message("T", b"x"))
    await asyncio.to_thread(producer.send, Message("T", b"x"))
    producer.close()


async def test_a_call_in_a_running_loop_can_be_made_an_error(cluster: ScriptedCluster) -> None:
    before = thread_names()
    with pytest.raises(RuntimeWarning):  # as pytest is configured
        blocking.Producer("P", namesrv=cluster.namesrv).start()
    assert thread_names() == before


def test_a_client_that_is_dropped_unclosed_is_a_warning(cluster: ScriptedCluster) -> None:
    producers = [blocking.Producer("shop", namesrv=cluster.namesrv)]
    producers[0].start()
    thread, client = producers[0]._thread, producers[0]._client
    with pytest.warns(ResourceWarning, match="Producer of group 'shop' was not closed"):
        producers.clear()
    assert thread is not None
    thread.wait_for(client.close())
    thread.release()


@pytest.mark.parametrize("make", [blocking.Producer, blocking.PullConsumer])
async def test_async_with_is_an_error_with_the_remedy(
    make: type[blocking.Producer | blocking.PullConsumer],
) -> None:
    with pytest.raises(TypeError, match=r"use `with` instead of `async with`, or reput\.client,"):
        async with make("G", namesrv="127.0.0.1:1"):  # type: ignore[attr-defined]
            pass
    with pytest.raises(TypeError, match="Admin is a blocking client"):
        async with blocking.Admin("127.0.0.1:1"):  # type: ignore[attr-defined]
            pass


@pytest.mark.parametrize(
    ("awaited", "facade"),
    [
        (Producer, blocking.Producer),
        (TransactionProducer, blocking.TransactionProducer),
        (Admin, blocking.Admin),
        (PushConsumer, blocking.PushConsumer),
        (PullConsumer, blocking.PullConsumer),
        (PopConsumer, blocking.PopConsumer),
    ],
)
def test_blocking_classes_have_all_methods(awaited: type, facade: type) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(awaited, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods.keys() <= set(dir(facade))
    # A local transaction runs in the thread that sends.
    for name in methods.keys() - {"start", "close", "send_in_transaction"}:
        wrapped = getattr(facade, name)
        assert not inspect.iscoroutinefunction(wrapped)
        assert wrapped.__wrapped__ is methods[name]
    made, wanted = (inspect.signature(cls.__init__) for cls in (facade, awaited))
    assert made == wanted


def test_the_package_imports_names_lazily() -> None:
    assert client.Producer is Producer
    assert client.Message is Message
    assert all(getattr(client, name) for name in client.__all__)
    assert "Producer" in dir(client)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = client.Nothing
