"""The lease of a master ends before another one can have been elected."""

from reput.broker.replicas.lease import Lease
from reput.clock import ManualClock

TIMEOUT_MS = 10_000


def test_a_lease_ends_before_the_controller_s_timeout() -> None:
    clock = ManualClock()
    lease = Lease(TIMEOUT_MS, clock.monotonic_ms)
    assert not lease.is_valid
    sent_ms = clock.monotonic_ms()
    clock.advance(1_000)  # until the answer
    lease.renew(sent_ms)
    assert (lease.is_valid, lease.left_ms) == (True, 7_000)
    clock.advance(6_999)
    assert (lease.is_valid, lease.left_ms) == (True, 1)
    clock.advance(1)  # 8 s after the heartbeat: 2 s for clocks that differ
    assert (lease.is_valid, lease.left_ms) == (False, 0)
    clock.advance(1 << 40)
    assert not lease.is_valid


def test_an_older_answer_does_not_shorten_it() -> None:
    clock = ManualClock()
    lease = Lease(TIMEOUT_MS, clock.monotonic_ms)
    lease.renew(500)
    lease.renew(0)
    assert lease.left_ms == 8_500
    lease.end()
    assert not lease.is_valid
    lease.renew(0)
    assert lease.is_valid
