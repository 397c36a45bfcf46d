"""A cluster as the console knows it: snapshot, history, rows, and the collector that fills them."""

from collections.abc import Iterable
from dataclasses import dataclass

from reput.client.admin import Admin
from reput.clock import Clock
from reput.console.collector import Collector
from reput.console.history import History
from reput.console.rows import Rows
from reput.console.snapshot import Snapshot
from reput.console.sources.live import Live


@dataclass(slots=True)
class WatchedCluster:
    """The clusters of some name servers."""

    live: Live
    snapshot: Snapshot
    history: History
    rows: Rows
    collector: Collector

    @classmethod
    def of(cls, admin: Admin, clock: Clock) -> "WatchedCluster":
        """Return the clusters that an admin client can reach, without facts about them."""
        live, snapshot, history = Live(admin), Snapshot(), History()
        rows = Rows(snapshot, history)
        return cls(live, snapshot, history, rows, Collector(live, snapshot, history, rows, clock))

    def note_viewed(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Note that a page with these topics and groups is viewed."""
        self.collector.note_viewed(topics, groups)
