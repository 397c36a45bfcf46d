"""What the last answer to a pull or pop says about a queue: whether messages can come from it.

A consumer is ready only if its brokers answer: queues that are allocated to it do not show that its
group exists, that it may read, or that a broker is there.
"""

from collections.abc import Iterable

from reput.format.bodies import MessageQueue


class AnsweredQueue:
    """A queue that a member reads, or a broker with any queue."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.is_answered = False
        """True if the last request was answered without an error."""
        self.problem: Exception | None = None
        """Error of the last request; None if it succeeded, or before the first."""

    def note(self, problem: Exception | None) -> bool:
        """Record the result of a request; return whether it differs from the previous result."""
        before = self.is_answered, self.problem is None
        self.is_answered, self.problem = problem is None, problem
        return before != (self.is_answered, problem is None)


def silent_topics(queues: Iterable[AnsweredQueue]) -> dict[str, Exception | None]:
    """Return the topics for whose queues no broker replies, with the first error, if any."""
    answered: set[str] = set()
    silent: dict[str, Exception | None] = {}
    for source in queues:
        topic = source.queue.topic
        if source.is_answered:
            answered.add(topic)
        silent[topic] = silent.get(topic) or source.problem
    return {topic: problem for topic, problem in silent.items() if topic not in answered}


def problem_of_all(queues: Iterable[AnsweredQueue]) -> Exception | None:
    """Return the first error if there are queues and the last request to each has failed."""
    problems = [source.problem for source in queues]
    return problems[0] if problems and all(problems) else None
