"""The faults of a run: each begins, lasts for a while, and is healed at its end.

One fault at a time, as the guarantees assume: a fault of the network, and the death of one broker.
All durations come from the run's Random.
"""

import asyncio
import contextlib
import random
import signal
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faults.harness import Node, Pair
from faults.history import Expectation, Fault, Guarantee, History
from faults.traffic import Traffic

SERVE_AGAIN_MS = 25_000
"""Time to serve again after healing: a slave registers every 10 s, and connects every 5 s; a busy
machine starts a process in seconds."""
HUGE = 1 << 60


@dataclass(slots=True)
class Run:
    """A running pair with its clients, and the choices of its faults.

    Attributes:
        probes_java: Whether garbage is written to the ports of Java's masters, too; they take it as
            acknowledgements, and lose messages.
    """

    pair: Pair
    traffic: Traffic
    history: History
    chance: random.Random
    clock: Callable[[], int]
    probes_java: bool = False

    async def last(self, shortest_s: float, longest_s: float) -> None:
        """Let a fault last."""
        await asyncio.sleep(self.chance.uniform(shortest_s, longest_s))


Step = Callable[[Run], Awaitable[None]]


# --- the network between slave and master ----------------------------------------------


async def cut_link(run: Run) -> None:
    """Reset the slave's connection, some times."""
    for _ in range(run.chance.randrange(1, 4)):
        run.pair.slave_link.cut()
        await run.last(0.05, 1.0)


async def stop_frames(run: Run) -> None:
    """Let nothing arrive at the slave."""
    run.pair.slave_link.stop_traffic(up=False, down=True)
    await run.last(0.5, 4)


async def stop_acknowledgements(run: Run) -> None:
    """Let the slave receive, and none of its reports arrive."""
    run.pair.slave_link.stop_traffic(up=True, down=False)
    await run.last(0.5, 4)


async def stop_link_and_cut(run: Run) -> None:
    """Stop both directions, then drop the bytes in flight."""
    run.pair.slave_link.stop_traffic()
    await run.last(0.5, 4)
    run.pair.slave_link.cut()


async def delay_link(run: Run) -> None:
    """Delay both directions."""
    run.pair.slave_link.delay(run.chance.choice((0.002, 0.02, 0.2)), 0.01)
    await run.last(1, 3)


async def split_link(run: Run) -> None:
    """Deliver frames and reports in pieces."""
    run.pair.slave_link.up.splits = run.pair.slave_link.down.splits = True
    await run.last(1, 3)


async def half_open_link(run: Run) -> None:
    """Let connections succeed and stay silent, longer than a silent one is kept."""
    run.pair.slave_link.half_open()
    await run.last(2, 7)


async def refuse_link(run: Run) -> None:
    """Refuse the slave's connections."""
    run.pair.slave_link.refuse()
    await run.last(0.5, 3)


async def stop_requests(run: Run) -> None:
    """Refuse the slave's requests for tables and for the end of its log, and its link."""
    for link in run.pair.slave_request_links:
        link.refuse()
    run.pair.slave_link.cut()
    await run.last(0.5, 3)


async def probe_port(run: Run) -> None:
    """Connect to the master's port for slaves, and write what no slave would."""
    await probe(run)
    await run.last(0.1, 0.5)


async def probe(run: Run) -> None:
    """Write garbage to the master's port for slaves, over some connections."""
    node, chance = run.pair.master, run.chance
    if not node.is_ours and not run.probes_java:
        return
    host, _, port = node.ha_address.rpartition(":")
    writers = []
    for data in (
        struct.pack(">q", HUGE),
        chance.randbytes(8),
        b"",
        b"\x01",
        struct.pack(">q", -1),
        struct.pack(">q", 1 << 20),
    ):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(data)
    await asyncio.sleep(chance.uniform(0.1, 0.5))
    for writer in writers:
        writer.transport.abort()


# --- processes --------------------------------------------------------------------------


async def kill_slave(run: Run) -> None:
    """Kill the slave, and start it again."""
    slave = run.pair.slave
    await run.pair.kill(slave)
    await run.last(0.1, 1.5)
    await run.pair.start(slave, is_master=False)


async def restart_slave(run: Run) -> None:
    """Stop the slave as an operator would, and start it again."""
    slave = run.pair.slave
    await run.pair.stop(slave)
    await run.pair.start(slave, is_master=False)


async def kill_master(run: Run) -> None:
    """Kill the master, and start it again as master."""
    master = run.pair.master
    await run.pair.kill(master)
    await run.last(0.1, 1.5)
    await run.pair.start(master, is_master=True)


async def freeze_slave(run: Run) -> None:
    """Suspend the slave's process, for less or more time than a master keeps a silent slave."""
    await _freeze(run, run.pair.slave, 7)


async def freeze_master(run: Run) -> None:
    """Suspend the master's process for a while."""
    await _freeze(run, run.pair.master, 4)


async def _freeze(run: Run, node: Node, longest_s: float) -> None:
    node.signal(signal.SIGSTOP)
    await run.last(0.5, longest_s)
    node.signal(signal.SIGCONT)


async def promote(run: Run) -> None:
    """Kill the master under load, promote the slave, let the old master return as slave."""
    old = run.pair.master
    await run.pair.kill(old)
    await _replace(run, old, 1.5)


async def _replace(run: Run, old: Node, longest_s: float) -> None:
    """Promote the slave, and let the old master, which has ended, return as slave."""
    await run.pair.promote(run.pair.slave)
    await run.last(0.2, longest_s)
    await run.pair.return_as_slave(old)


async def promote_without_link(run: Run) -> None:
    """Separate the slave, write garbage to the master, kill the master, promote the slave.

    Messages that only the master has must not have been acknowledged.
    """
    link = run.pair.slave_link
    link.stop_traffic(up=True, down=run.chance.random() < 0.7)
    await run.last(0.3, 1.0)
    await probe(run)
    await run.last(0.3, 1.0)
    old = run.pair.master
    await run.pair.kill(old)
    link.cut()
    link.heal()
    await _replace(run, old, 1.0)


async def promote_beside_old_master(run: Run) -> None:
    """Freeze the master, promote the slave, continue the old master, and let it get messages."""
    old = run.pair.master
    old.signal(signal.SIGSTOP)
    await run.last(0.1, 1.0)
    old_term = run.pair.term
    await run.pair.promote(run.pair.slave)
    old.signal(signal.SIGCONT)
    for _ in range(3):
        await run.traffic.send("stray", old, old_term)
    await run.pair.kill(old)
    await run.pair.return_as_slave(old)


async def cut_power_of_slave(run: Run) -> None:
    """Cut the slave's power, and start it again."""
    slave = run.pair.slave
    await run.pair.cut_power(slave)
    await run.last(0.1, 1.0)
    await run.pair.start(slave, is_master=False)


async def cut_power_of_master(run: Run) -> None:
    """Cut the master's power, promote the slave, let the old master return as slave."""
    old = run.pair.master
    await run.pair.cut_power(old)
    await _replace(run, old, 1.5)


async def cut_power_of_both(run: Run) -> None:
    """Cut the power of both at the same time, and start them again in the same roles."""
    master, slave = run.pair.master, run.pair.slave
    await run.pair.cut_power(master, slave)
    run.pair.term += 1
    await run.pair.start(master, is_master=True)
    await run.pair.return_as_slave(slave)


async def cut_power_of_both_and_promote(run: Run) -> None:
    """Cut the power of both at the same time, and start them again with exchanged roles."""
    master, slave = run.pair.master, run.pair.slave
    await run.pair.cut_power(master, slave)
    await run.pair.promote(slave)
    await run.pair.return_as_slave(master)


CALM_STEPS: tuple[Step, ...] = (
    cut_link,
    stop_frames,
    stop_acknowledgements,
    stop_link_and_cut,
    delay_link,
    split_link,
    half_open_link,
    refuse_link,
    stop_requests,
    probe_port,
    kill_slave,
    restart_slave,
    freeze_slave,
    freeze_master,
    kill_master,
)
"""Faults after which the master is the same."""
POWER_CUTS: dict[Guarantee, tuple[Step, ...]] = {
    Guarantee.SYNC: (cut_power_of_slave, cut_power_of_master),
    Guarantee.ASYNC: (cut_power_of_slave, cut_power_of_master),
    Guarantee.DISK: (
        cut_power_of_slave,
        cut_power_of_master,
        cut_power_of_both,
        cut_power_of_both_and_promote,
    ),
}
"""Power cuts that each guarantee survives."""
PROMOTIONS: tuple[Step, ...] = (promote, promote_without_link, promote_beside_old_master)


def plan(
    chance: random.Random,
    guarantee: Guarantee,
    count: int,
    *,
    promotes: bool = True,
    is_lossy: bool = False,
) -> list[Step]:
    """Return the faults of a run.

    Args:
        chance: Source of the choices.
        guarantee: Guarantee that all faults together do not exceed.
        count: Number of faults.
        promotes: Whether the slave is promoted at least once; if not, it never is.
        is_lossy: Whether most faults are power cuts.
    """
    if not promotes:
        return [chance.choice(CALM_STEPS) for _ in range(count)]
    promotions = PROMOTIONS
    if guarantee is Guarantee.ASYNC:
        # Nothing keeps a continued ASYNC_MASTER from acknowledging.
        promotions = PROMOTIONS[:2]
    steps = [chance.choice((*CALM_STEPS, *promotions)) for _ in range(count)]
    if is_lossy:
        return [chance.choice((step, *POWER_CUTS[guarantee])) for step in steps]
    if not set(steps) & set(promotions):
        steps[chance.randrange(count)] = chance.choice(promotions)
    return steps


async def play(run: Run, step: Step) -> None:
    """Play a fault, and heal it."""
    name = getattr(step, "__name__", str(step))
    start_ms = run.clock()
    try:
        await step(run)
    finally:
        for link in run.pair.links:
            link.heal()
    healed_ms = run.clock()
    run.history.expectations.append(Expectation(name, healed_ms, SERVE_AGAIN_MS))
    run.history.faults.append(Fault(name, start_ms, healed_ms))
