"""The reply with all topics: megabytes for 10,000 of them, so encoded once per change."""

from reput.broker.topic.topics import Topics, data_version, topic_data
from reput.format.bodies import DataVersion, TopicConfigTable
from reput.remoting.long_replies import LongBody, chunks
from reput.remoting.time_slices import Steps

_PART = 200
"""Topics that are encoded in less than 1 ms."""


class TopicList:
    """The encoded list of all topics, cached until a topic changes.

    Args:
        topics: The topics.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = DataVersion(), 0
        self._body = b""

    def encode(self) -> Steps[bytes]:
        """Return the JSON of all topics at the time of the call.

        Raises:
            LimitExceeded: There are too many topics for one reply.
        """
        table = self._topics.table
        version = data_version(table.version)
        # A slave's version is that of its master: local changes leave it.
        current = version, table.change_count
        if self._body and current == self._version:
            return self._body
        self._body = b""
        body = LongBody("all topics; ask for single topics with request 351")
        for chunk in chunks(self._topics.all().values(), _PART):
            for topic in chunk:
                body.add_pair(topic.name, topic_data(topic))
            yield
        data = body.encode_in(
            TopicConfigTable(data_version=version, topic_config_table={}), "topic_config_table"
        )
        self._version, self._body = current, data
        return data
