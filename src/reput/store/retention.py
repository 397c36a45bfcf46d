"""Expiry: which log files may go, and deleting them."""

from reput.store.commit_log import CommitLog
from reput.store.config import StoreConfig
from reput.store.consume_queue import ConsumeQueues
from reput.store.disk import Disk
from reput.store.index_file import IndexFiles


class Retention:
    """Deletes what has expired."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
    ) -> None:
        self.refusal = ""
        """Why nothing can be put: the disk is too full; empty if it is not."""

    def step(self, now_ms: int, monotonic_ms: int) -> bool:
        """Do what is due; return whether anything was."""
        return False
