"""Settings of topics, as brokers exchange them."""

from reput.format.bodies import TopicConfigData


def topic_config(name: str) -> TopicConfigData:
    """Return a topic with one queue."""
    return TopicConfigData(
        topic_name=name,
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        order=False,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
    )
