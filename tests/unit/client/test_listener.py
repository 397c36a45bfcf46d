"""Calls of listeners: coroutines and functions; errors and wrong results count as failures."""

import asyncio
import functools
import threading
from typing import Any

import pytest

from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.pop_consumer import PopConsumer
from reput.client.push_consumer import PushConsumer
from reput.errors import InvalidOption
from reput.format.bodies import MessageQueue

CONTEXT = ConsumeContext(MessageQueue("T", "broker-a", 0))


async def outcome(listener: Any) -> tuple[ConsumeResult, BaseException | None, bool]:
    calls = ListenerCalls(listener, 2)
    try:
        return (*await calls.call([], CONTEXT), calls.is_async)
    finally:
        calls.close()


async def good(_messages: object, _context: object) -> ConsumeResult:
    await asyncio.sleep(0)
    return ConsumeResult.SUCCESS


class Callable:
    async def __call__(self, _messages: object, _context: object) -> ConsumeResult:
        return ConsumeResult.COMMIT

    async def method(self, _messages: object, _context: object) -> ConsumeResult:
        return ConsumeResult.ROLLBACK


async def test_async_functions_run_in_the_loop() -> None:
    assert await outcome(good) == (ConsumeResult.SUCCESS, None, True)
    assert await outcome(Callable()) == (ConsumeResult.COMMIT, None, True)
    assert await outcome(Callable().method) == (ConsumeResult.ROLLBACK, None, True)
    assert await outcome(functools.partial(good)) == (ConsumeResult.SUCCESS, None, True)


async def test_plain_functions_run_in_a_thread() -> None:
    threads = []

    def listen(_messages: object, _context: object) -> ConsumeResult:
        threads.append(threading.current_thread())
        return ConsumeResult.LATER

    assert await outcome(listen) == (ConsumeResult.LATER, None, False)
    assert threads != [threading.main_thread()]
    # A plain function that returns a coroutine: the coroutine is awaited.
    assert await outcome(lambda *some: good(*some)) == (ConsumeResult.SUCCESS, None, False)


async def test_a_listener_that_returns_nothing_has_consumed(caplog: Any) -> None:
    async def listen(*_: object) -> None:
        await asyncio.sleep(0)

    assert await outcome(listen) == (ConsumeResult.SUCCESS, None, True)
    assert await outcome(lambda *_: None) == (ConsumeResult.SUCCESS, None, False)
    assert not caplog.records


@pytest.mark.parametrize("wrong", [None, "listen", 5])
def test_a_listener_that_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="listener"):
        PushConsumer("C", namesrv="127.0.0.1:9876", listener=wrong)
    if wrong is not None:  # the program pops
        with pytest.raises(InvalidOption, match="listener"):
            PopConsumer("C", namesrv="127.0.0.1:9876", listener=wrong)


@pytest.mark.parametrize("wrong", [False, True, "SUCCESS", 0])
async def test_a_wrong_return_value_is_a_failure(wrong: object, caplog: Any) -> None:
    result, error, _ = await outcome(lambda *_: wrong)
    assert (result, error) == (ConsumeResult.LATER, None)
    assert "return a ConsumeResult" in caplog.text


async def test_an_exception_is_a_failure(caplog: Any) -> None:
    def fail(*_: object) -> ConsumeResult:
        raise ZeroDivisionError("an error of the user's")

    result, error, _ = await outcome(fail)
    assert result is ConsumeResult.LATER
    assert isinstance(error, ZeroDivisionError)
    assert "listener failed with" in caplog.text
    assert "again" not in caplog.text  # only its consumer knows


async def test_a_cancelled_await_in_a_listener_is_its_failure() -> None:
    async def listen(*_: object) -> ConsumeResult:
        other = asyncio.create_task(asyncio.sleep(3600))
        other.cancel()
        await other
        return ConsumeResult.SUCCESS

    result, error, _ = await outcome(listen)
    assert result is ConsumeResult.LATER
    assert isinstance(error, asyncio.CancelledError)


async def test_the_caller_can_be_cancelled() -> None:
    has_begun = asyncio.Event()

    async def listen(*_: object) -> ConsumeResult:
        has_begun.set()
        await asyncio.sleep(3600)
        return ConsumeResult.SUCCESS

    calling = asyncio.create_task(outcome(listen))
    await has_begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_stop_iteration_in_a_thread_is_a_failure() -> None:
    def listen(*_: object) -> ConsumeResult:
        return next(iter(()))

    result, error, _ = await outcome(listen)
    assert result is ConsumeResult.LATER
    assert isinstance(error, RuntimeError)


async def test_calls_after_close_run_in_new_threads() -> None:
    calls = ListenerCalls(lambda *_: ConsumeResult.SUCCESS, 1)
    for _ in range(2):
        assert await calls.call([], CONTEXT) == (ConsumeResult.SUCCESS, None)
        calls.close()
