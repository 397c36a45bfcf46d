"""Notifies the members of consumer groups that a member has joined, left or changed.

Each turn of the event loop sends at most one notice to a member, however many others have changed.
If n members join successively, one notice per change would cause n * n of them. So a large group
gets its next notice only after a pause that grows with its size.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from reput.format import command as commands, headers
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import ConsumerGroupHeader
from reput.remoting import time_slices
from reput.remoting.client_faults import ClientFaults
from reput.remoting.time_slices import Steps, TimeSlices

if TYPE_CHECKING:
    from reput.broker.group.groups import Groups
    from reput.remoting.channel import Channel

NOTICES_PER_S = 10_000
"""Notices to the members of one group, per second."""
_PAUSES_ABOVE = 100
"""Size above which a group's notices are spaced; smaller groups may get one per turn of the loop.
"""
_PART = 100
"""Notices that are sent between two yields."""

_log = logging.getLogger(__name__)


class MemberNotices:
    """Holds the groups whose members wait for a notice, and sends it.

    Args:
        groups: All groups and their members.
        is_notified: Returns whether members of a group get notices.
        slices: Runs the work in time slices.
    """

    def __init__(
        self, groups: "Groups[Channel]", is_notified: Callable[[str], bool], slices: TimeSlices
    ) -> None:
        self._groups = groups
        self._is_notified = is_notified
        self._slices = slices
        self._faults = ClientFaults(_log, time.monotonic)
        self._waiting: dict[str, None] = {}
        self._pausing: set[str] = set()
        self._is_begun = False

    def notify_soon(self, group: str) -> None:
        """Notify the members of a group in the next turn of the event loop."""
        self._waiting[group] = None
        self._begin()

    def _begin(self) -> None:
        if not self._is_begun and self._waiting.keys() - self._pausing:
            self._is_begun = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        work = self._notify()

        def step(deadline: float) -> bool:
            has_ended = True
            try:
                has_ended, _ = time_slices.advance(work, deadline, self._slices.seconds)
            finally:
                if has_ended:
                    self._is_begun = False
                    self._begin()
            return not has_ended

        self._slices.add(step)

    def _notify(self) -> Steps[None]:
        for group in [group for group in self._waiting if group not in self._pausing]:
            del self._waiting[group]
            consumers = self._groups.consumer(group)
            if consumers is None or not self._is_notified(group):
                continue
            channels = list(consumers.members)
            notice = Command(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                flag=IS_ONEWAY,
                ext_fields=headers.encode(ConsumerGroupHeader(consumer_group=group)),
            )
            try:
                commands.encode_head(notice)
            except ValueError as error:  # a name from an old table
                self._faults.warn(
                    "name", "members of group %.300r get no notices: %s", group, error
                )
                continue
            if len(channels) > _PAUSES_ABOVE:
                self._pausing.add(group)
                loop = asyncio.get_running_loop()
                loop.call_later(len(channels) / NOTICES_PER_S, self._resume, group)
            for start in range(0, len(channels), _PART):
                for channel in channels[start : start + _PART]:
                    channel.notify(notice)
                yield
            yield

    def _resume(self, group: str) -> None:
        self._pausing.discard(group)
        self._begin()
