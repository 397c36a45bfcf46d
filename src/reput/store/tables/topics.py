"""The table of topics, topics.json."""

from reput.store.files import paths
from reput.store.tables import config_tables
from reput.store.tables.config_tables import Table, TopicConfig
from reput.store.tables.saved_table import NamedTable


class TopicTable(NamedTable[TopicConfig]):
    """topics.json: the topics, by name."""

    path = paths.TOPICS
    entries_member = "topicConfigTable"

    def _entry(self, name: str, value: Table) -> TopicConfig:
        return config_tables.topic_config(name, value)

    def _merged(self, entry: TopicConfig, stored: Table) -> Table:
        return _topic_entry(entry, stored)


def _topic_entry(topic: TopicConfig, stored: Table) -> Table:
    entry: Table = {
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_count,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queue_count,
    }
    if topic.attributes or "attributes" in stored:  # 4.x has none
        entry["attributes"] = dict(topic.attributes)
    return entry
