"""Results of the parts of the demo."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

Samples = list[tuple[int, int]]
"""Pairs of ms since the epoch and the number of messages so far, in order."""


@dataclass
class Traffic:
    """Messages that were sent to the broker and consumed from it."""

    message_count: int
    """Number of published messages, all of them acknowledged."""
    group: str
    """Consumer group."""
    publish_seconds: float = 0.0
    consumed_count: int = 0
    """Number of different messages consumed."""
    consume_seconds: float = 0.0
    published: Samples = field(default_factory=list)
    consumed: Samples = field(default_factory=list)

    @property
    def publish_rate(self) -> float:
        """Messages a second."""
        return self.message_count / max(self.publish_seconds, 0.001)

    @property
    def consume_rate(self) -> float:
        """Messages a second."""
        return self.consumed_count / max(self.consume_seconds, 0.001)


@dataclass
class MicroBatch:
    """A micro-batch of the stream."""

    end_ms: int
    rows: int
    seconds: float
    lag: int
    """Consumer lag when the micro-batch finished, in messages."""


@dataclass
class Streamed:
    """Result of a Spark stream from the running broker into Parquet."""

    published: int
    """Number of acknowledged messages, including those sent while the stream ran."""
    rows: int
    """Number of rows in the Parquet files."""
    different: int
    """Number of different messages among the rows, by topic, queue and queue offset."""
    seconds: float
    parquet_bytes: int
    batches: list[MicroBatch] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages a second, from its first trigger to the end of its last micro-batch."""
        return self.rows / max(self.seconds, 0.001)

    @property
    def is_exact(self) -> bool:
        """Whether each message was written exactly once."""
        return self.rows == self.different == self.published


@dataclass
class Rebuilt:
    """Result of the dispatch job, compared with the broker's queues and index."""

    seconds: float
    units: int
    index_entries: int
    queue_differences: int
    index_differences: int

    @property
    def is_identical(self) -> bool:
        """Whether all files are byte-identical."""
        return not self.queue_differences and not self.index_differences


@dataclass
class Audited:
    """Result of the audit."""

    seconds: float
    messages: int
    verdicts: dict[str, int]
    lost: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing is lost."""
        return self.lost == 0


@dataclass
class Story:
    """Results of all parts of the demo; None for a part that did not run."""

    traffic: Traffic | None = None
    streamed: Streamed | None = None
    rebuilt: Rebuilt | None = None
    audited: Audited | None = None

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and texts that describe the parts of the demo."""
        facts = []
        if (traffic := self.traffic) is not None:
            facts += [
                (
                    "Published",
                    f"{traffic.message_count:,}, each acknowledged, {traffic.publish_rate:,.0f} a "
                    "second",
                ),
                (
                    "Consumed",
                    f"{traffic.consumed_count:,} by group {traffic.group}, "
                    f"{traffic.consume_rate:,.0f} a second{self._unread}",
                ),
            ]
        if (streamed := self.streamed) is not None:
            exact = "each once" if streamed.is_exact else "not each once"
            most = max((batch.lag for batch in streamed.batches), default=0)
            facts.append(
                (
                    "Streamed",
                    f"{streamed.rows:,} of {streamed.published:,} from the running broker into "
                    f"{streamed.parquet_bytes / 2**20:,.1f} MiB of Parquet, {exact}, "
                    f"{streamed.rate:,.0f} a second, lag at most {most:,}",
                )
            )
        if (rebuilt := self.rebuilt) is not None:
            same = "yes" if rebuilt.is_identical else "no"
            facts.append(
                (
                    "Rebuilt",
                    f"{rebuilt.units:,} queue units and {rebuilt.index_entries:,} index entries "
                    f"from the log in {rebuilt.seconds:.1f} s, byte-identical: {same}",
                )
            )
        if (audited := self.audited) is not None:
            verdicts = ", ".join(f"{count:,} {name}" for name, count in audited.verdicts.items())
            facts.append(
                (
                    "Audited",
                    f"{audited.messages:,} messages in {audited.seconds:.1f} s: {audited.lost:,} "
                    f"lost; {verdicts}",
                )
            )
        return facts

    @property
    def _unread(self) -> str:
        """Why the report shows a lag of the group; empty if it has none."""
        if self.traffic is None or self.streamed is None:
            return ""
        count = self.streamed.published - self.traffic.message_count
        group = self.traffic.group
        text = f"; {count:,} more were sent for the stream: group {group} has not read them"
        return text if count > 0 else ""

    @property
    def problems(self) -> list[str]:
        """Texts that describe lost, duplicate and differing data; empty without problems."""
        problems = []
        if (traffic := self.traffic) and traffic.consumed_count != traffic.message_count:
            problems.append(
                f"{traffic.consumed_count:,} of {traffic.message_count:,} were consumed"
            )
        if (streamed := self.streamed) and not streamed.is_exact:
            problems.append(
                f"the stream wrote {streamed.rows:,} rows, {streamed.different:,} different ones, "
                f"of {streamed.published:,} messages"
            )
        if (rebuilt := self.rebuilt) and not rebuilt.is_identical:
            problems.append(
                f"{rebuilt.queue_differences:,} queues and {rebuilt.index_differences:,} index "
                "files differ from those derived from the log"
            )
        if (audited := self.audited) and not audited.is_clean:
            problems.append(f"the audit found {audited.lost:,} lost messages")
        return problems

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)
