"""What a broker counts: messages and bytes, in and out."""

from collections import Counter

from reput.store.getting import GetResult, GetStatus


class Stats:
    """Counters since the start."""

    def __init__(self) -> None:
        self.got_by_group: Counter[tuple[str, str]] = Counter()
        """(topic, group) to messages."""
        self.got_bytes_by_group: Counter[tuple[str, str]] = Counter()
        self.put_failed_count = 0
        self.pull_count = 0

    def pulled(self, topic: str, group: str, result: GetResult) -> None:
        """Count a pull that was answered."""
        self.pull_count += 1
        if result.status is GetStatus.FOUND:
            self.got_by_group[topic, group] += result.message_count
            self.got_bytes_by_group[topic, group] += len(result.data)
