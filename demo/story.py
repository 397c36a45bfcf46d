"""What the demo did with the store before the report was made."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

Samples = list[tuple[int, int]]
"""(ms since the epoch, how many so far), in order."""


@dataclass
class Traffic:
    """What went through the broker."""

    message_count: int
    """Published; every one was acknowledged."""
    group: str
    """Who consumed them."""
    publish_seconds: float = 0.0
    consumed_count: int = 0
    """Different messages."""
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
    """One of a stream."""

    end_ms: int
    rows: int
    seconds: float
    lag: int
    """Messages that waited when it was through."""


@dataclass
class Streamed:
    """What a Spark stream took from the running broker into Parquet."""

    published: int
    """Acknowledged messages, those that were sent while it ran counted in."""
    rows: int
    """In the Parquet files."""
    different: int
    """Of these, different messages: topic, queue and queue offset."""
    seconds: float
    parquet_bytes: int
    batches: list[MicroBatch] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages a second, from its first trigger to the end of its last micro-batch."""
        return self.rows / max(self.seconds, 0.001)

    @property
    def is_exact(self) -> bool:
        """Whether each message is there once."""
        return self.rows == self.different == self.published


@dataclass
class Rebuilt:
    """What the dispatch job made of the log, against what the broker had made of it."""

    seconds: float
    units: int
    index_entries: int
    queue_differences: int
    index_differences: int

    @property
    def is_identical(self) -> bool:
        """Whether all of it is the same, byte for byte."""
        return not self.queue_differences and not self.index_differences


@dataclass
class Audited:
    """What the audit said of the messages."""

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
    """All parts of the demo; a part that was not done is None."""

    traffic: Traffic | None = None
    streamed: Streamed | None = None
    rebuilt: Rebuilt | None = None
    audited: Audited | None = None

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was done, in names and words."""
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
                    f"{traffic.consume_rate:,.0f} a second",
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
                    f"{streamed.rate:,.0f} a second, at most {most:,} behind",
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
    def problems(self) -> list[str]:
        """What was lost, doubled or made differently, in words; nothing if all is fine."""
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
                "files differ from what the log gives"
            )
        if (audited := self.audited) and not audited.is_clean:
            problems.append(f"the audit found {audited.lost:,} lost messages")
        return problems

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)
