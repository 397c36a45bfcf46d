"""Sees to it that each group has a living master, as far as one may be elected.

    a connection closes          -> the groups of its brokers
    a timeout is over            -> all groups
    a broker comes back to life  -> its group

It checks states, not events: an election that failed, because there was no candidate or because the
disk was full, is tried again with the next check.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from reput.clock import Clock
from reput.controller import rules
from reput.controller.group import Group
from reput.controller.groups import Groups
from reput.controller.liveness import Liveness, Sight
from reput.controller.notices import Notices
from reput.controller.quorum import Deposed
from reput.controller.rules import Decision
from reput.errors import ReputError

CHECK_MS = 1_000
"""Longest time between two checks of all groups, in ms."""
_LEAST_MS = 10
PAUSE_MS = 1_000
"""Delay of a check, in ms, after which the controller itself did not run."""

NEW_MASTER, KEPT_MASTER, NO_MASTER = (
    "new_master_elected",
    "keep_current_master",
    "no_master_elected",
)
"""Results of elections. Source: rocketmq 5.5.0 ``ControllerMetricsConstant``."""

_log = logging.getLogger(__name__)


class Elections:
    """Elects masters.

    Args:
        groups: All groups.
        liveness: The living brokers.
        notices: Notifies brokers of new masters.
        clock: The clock; only its monotonic time is used.
        is_unclean: Returns whether a replica that is not in sync may be elected.
        is_notifying: Returns whether brokers are notified.
    """

    def __init__(
        self,
        groups: Groups,
        liveness: Liveness,
        notices: Notices,
        clock: Clock,
        is_unclean: Callable[[], bool],
        is_notifying: Callable[[], bool],
    ) -> None:
        self._groups = groups
        self._liveness = liveness
        self._notices = notices
        self._clock = clock
        self._is_unclean = is_unclean
        self._is_notifying = is_notifying
        self._running: dict[str, asyncio.Task[None]] = {}
        self.checked_ms = clock.monotonic_ms()
        """Monotonic time of the latest check, in ms."""
        self.failure = ""
        """Error of the latest election; empty if it succeeded."""
        self.counts: Counter[str] = Counter()
        """Elections by result: ``new_master``, ``no_master``, ``failed``."""
        self.counts_by_group: Counter[tuple[str, str, str]] = Counter()
        """Elections by cluster, broker name and result, which has Java's name."""

    def presume(self) -> None:
        """Presume that masters that were never heard are alive: the controller begins to lead."""
        now_ms = self.checked_ms = self._clock.monotonic_ms()
        for group in self._groups.all():
            if group.master_id is not None:
                name, timeout_ms = group.broker_name, group.heartbeat_timeout_ms
                self._liveness.presume(name, group.master_id, timeout_ms, now_ms)

    async def run(self) -> None:
        """Check all groups, until it is cancelled."""
        while True:
            try:
                self.check_all()
            except Exception as error:  # noqa: BLE001 - a turn of a loop; the next may succeed
                _log.exception("checking for dead masters failed")
                self.failure = f"{type(error).__name__}: {error}"
            now_ms = self.now_ms()
            end_ms = self._liveness.next_end_ms(now_ms)
            wait_ms = CHECK_MS if end_ms is None else min(max(end_ms - now_ms, _LEAST_MS), CHECK_MS)
            await asyncio.sleep(wait_ms / 1000)

    def check_all(self) -> None:
        """Begin an election in each group that needs one."""
        self.checked_ms = self.now_ms()
        for group in self._groups.all():
            self.check_group(group.broker_name)

    def check_group(self, name: str) -> None:
        """Begin an election in a group if it needs one, and none is running."""
        group = self._groups.get(name) if self._groups.is_leading else None
        if group is None or name in self._running or self._replaced(group) is group:
            return
        task = asyncio.get_running_loop().create_task(self._elect(name))
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))

    async def close(self) -> None:
        """Wait until all elections have ended."""
        if self._running:
            await asyncio.wait(list(self._running.values()))

    def now_ms(self) -> int:
        """Return the monotonic time, in ms; time in which the controller slept is no silence."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self.checked_ms - CHECK_MS
        if late_ms > PAUSE_MS:
            _log.warning("the controller did not run for %d ms: it received no heartbeats", late_ms)
            self._liveness.pause(late_ms, now_ms)
            self.checked_ms = now_ms
        return now_ms

    def sight(self, name: str) -> Sight:
        """Return the living brokers of a group."""
        return self._liveness.sight(name, self.now_ms())

    def announce(self, before: Group | None, after: Group | None) -> None:
        """Count and report an election, if there was one, and notify the brokers."""
        if after is None or before is None or after.master_epoch == before.master_epoch:
            return
        name, epoch = after.broker_name, after.master_epoch
        self.count_of(after, NO_MASTER if after.master_id is None else NEW_MASTER)
        if after.master_id is None:
            self.counts["no_master"] += 1
            text = "%.300r has no master, in epoch %d: no in-sync replica is alive, of %s"
            _log.error(text, name, epoch, list(after.in_sync))
            return
        self.counts["new_master"] += 1
        text = "broker %d at %.300r is the master of %.300r in epoch %d; before: %s"
        _log.warning(text, after.master_id, after.master_address, name, epoch, before.master_id)
        if self._is_notifying():
            self._notices.send(after, self.sight(name).alive)

    def count_of(self, group: Group, result: str) -> None:
        """Count an election of a group: ``NEW_MASTER``, ``KEPT_MASTER`` or ``NO_MASTER``."""
        self.counts_by_group[group.cluster_name, group.broker_name, result] += 1

    def forget(self, name: str) -> None:
        """Forget the counts of a group that is gone."""
        for key in [key for key in self.counts_by_group if key[1] == name]:
            del self.counts_by_group[key]

    def _replaced(self, group: Group) -> Group:
        sight = self.sight(group.broker_name)
        return rules.replace_master(group, sight, is_unclean=self._is_unclean())

    async def _elect(self, name: str) -> None:
        def decide(group: Group | None) -> Decision:
            return Decision(None if group is None else self._replaced(group))

        try:
            before, decision = await self._groups.change(name, decide)
        except Deposed as error:
            _log.warning("no election in %.300r: %s", name, error)
        except ReputError as error:
            self.counts["failed"] += 1
            self.failure = f"{name}: {error}"
            _log.error("no election in %.300r: %s", name, error)
        else:
            self.failure = ""
            self.announce(before, decision.group)
