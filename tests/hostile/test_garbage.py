"""Refused requests are freed at once: their errors are in no reference cycle.

An error has a traceback, whose frames have the request. If something in these frames has the error
as well, all of it stays until the next collection of garbage: a hundred refused messages of 8 MiB
once took 800 MiB.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import seeds
from hostile import attack, calls, requests
from proxied_broker import ProxiedBroker
from reput.testing import LocalBroker

pytestmark = [pytest.mark.hostile, pytest.mark.slow, pytest.mark.xdist_group("hostile")]

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "enablePropertyFilter": "true"}
SEED = seeds.today()
"""Seed of this day: the same conversations all day, and others tomorrow."""
SERVERS = ("broker", "namesrv", "broker calls", "proxy")


@contextmanager
def keeping_garbage() -> Iterator[list[object]]:
    """Collect no garbage meanwhile; at the end fill a list with what would have been collected."""
    garbage: list[object] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield garbage
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        garbage += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


def described(error: BaseException) -> str:
    """Return an error with the frames of its traceback."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return f"{error!r:.150} in {' > '.join(frames)}"


@pytest.mark.parametrize("server", SERVERS)
def test_errors_of_refused_requests_are_in_no_cycle(server: str) -> None:
    """Their tracebacks are what costs: an error without one is small."""
    kind = ProxiedBroker if server == "proxy" else LocalBroker
    with kind(topics=[requests.TOPIC], settings=SETTINGS) as mq:
        addresses = {"broker": mq.broker_addrs[0], "namesrv": mq.namesrv_addr}
        port = int(addresses.get(server, mq.grpc_endpoint).rpartition(":")[2])
        is_remoting = server in addresses
        scripts = attack.script(server, SEED, 0) if is_remoting else calls.script(SEED, 0)
        with keeping_garbage() as garbage:
            attack.play(port, scripts, 3.0)
            del scripts
        errors = {
            described(each)
            for each in garbage
            if isinstance(each, BaseException) and each.__traceback__ is not None
        }
        garbage.clear()
        assert not errors, f"seed {SEED}: {sorted(errors)}"
