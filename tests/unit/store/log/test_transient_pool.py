"""The transient store pool."""

import errno
import logging
import os

import pytest

from reput.store.files import memory
from reput.store.log.transient_pool import TransientPool


def test_the_pool_has_the_configured_number_of_buffers() -> None:
    pool = TransientPool(2, 4096, is_locked=False)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert first.address != second.address
    assert pool.available == 0
    assert pool.borrow() is None
    first.release()
    assert pool.available == 1
    assert pool.borrow() is first


def test_a_buffer_is_given_back_once() -> None:
    pool = TransientPool(1, 4096, is_locked=False)
    buffer = pool.borrow()
    assert buffer is not None
    buffer.release()
    with pytest.raises(AssertionError, match="twice"):
        buffer.release()


def test_buffers_are_locked_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = []
    monkeypatch.setattr(memory, "lock", lambda address, size: locked.append((address, size)))
    pool = TransientPool(2, 4096)
    buffers = [pool.borrow(), pool.borrow()]
    assert sorted(locked) == sorted((buffer.address, 4096) for buffer in buffers if buffer)


def test_forbidden_locking_logs_one_warning_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(address: int, size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(memory, "lock", refuse)
    with caplog.at_level(logging.WARNING):
        pool = TransientPool(3, 4096)
    assert pool.available == 3
    assert [record.message for record in caplog.records] == [
        "a pool buffer of 4096 bytes is not locked in memory and may be swapped out: "
        "Cannot allocate memory; raise the memlock limit (ulimit -l)"
    ]
