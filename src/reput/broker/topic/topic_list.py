"""The reply with all topics: megabytes for 10,000 of them, so encoded once per change."""

from reput.broker.topic.topics import Topics, data_version, topic_data
from reput.format.bodies import TopicConfigReply
from reput.remoting.long_replies import LongBody, SharedReplies, chunks
from reput.remoting.time_slices import Steps

_PART = 200
"""Topics that are encoded in less than 1 ms."""


def encode(topics: Topics, listings: SharedReplies) -> Steps[bytes]:
    """Return the JSON of all topics at the time of the call, or later.

    Raises:
        LimitExceeded: There are too many topics for one reply.
    """
    table = topics.table
    # A slave's version is that of its master: local changes leave it.
    version = data_version(table.version), table.change_count
    return listings.ask("topics", lambda: _encode(topics), version)


def _encode(topics: Topics) -> Steps[bytes]:
    version = data_version(topics.table.version)
    body = LongBody("all topics; ask for single topics with request 351")
    for chunk in chunks(topics.all().values(), _PART):
        for topic in chunk:
            body.add_pair(topic.name, topic_data(topic))
        yield
    return body.encode_in(
        TopicConfigReply(data_version=version, topic_config_table={}), "topic_config_table"
    )
