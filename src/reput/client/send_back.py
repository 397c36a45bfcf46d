"""Retries and dead letters of a group.

The broker that holds a message is asked to copy it (36): after a delay into the group's retry topic
or, once its retries are exhausted, into the dead-letter topic. If that fails, a copy is sent to the
retry topic through any broker.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

import logging
import random

from reput.client.core import requests
from reput.client.core.requests import SendRequests
from reput.client.failed_messages import FailedMessages
from reput.client.instance import ClientInstance
from reput.client.membership import Problem
from reput.client.message import ReceivedMessage
from reput.errors import CorruptRecord
from reput.format import headers, java, names, properties as props, sys_flag as flags
from reput.format.codes import RequestCode

log = logging.getLogger(__name__)

PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
TIMEOUT_MS = 5_000
MAX_RECONSUME_TIMES = 16
"""Maximum number of retries by default."""
FIRST_DELAY_LEVEL = 3
"""Delay level of the first retry, 10 s by default; each further retry has the next level."""


class SendBack:
    """Sends messages of one group back.

    Args:
        instance: Client instance for requests.
        group: The consumer group, by its full name.
        retries_max: Number of retries after which a message becomes a dead letter.
        failed: Records what happens to the messages.
    """

    def __init__(
        self, instance: ClientInstance, group: str, retries_max: int, failed: FailedMessages
    ) -> None:
        self.retries_max = retries_max
        self._failed = failed
        self._instance = instance
        self._group = group
        self._requests = SendRequests(PRODUCER_GROUP, "TBW102", 4)

    async def send(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Request another delivery of a message; return whether a broker has accepted it.

        Args:
            message: The message.
            delay_level: Delay level; 0: by the number of retries; negative: dead letter at once.
        """
        try:
            await self._ask_its_broker(message, delay_level)
        except (*Problem, CorruptRecord) as error:
            text = "%s is not sent back by its broker"
            self._instance.outages.warn(log, error, text, _name(message))
            return await self.send_copy(message, message.reconsume_times)
        retry_count = message.reconsume_times
        if delay_level < 0 or retry_count >= self.retries_max:
            self._failed.dead(message, retry_count + 1)
        else:
            level = delay_level or FIRST_DELAY_LEVEL + retry_count
            self._failed.after_level(message, retry_count + 1, level)
        return True

    async def give_up(self, message: ReceivedMessage) -> bool:
        """Make a dead letter of a message; return whether its broker has stored a copy."""
        try:
            await self._ask_its_broker(message, -1)
        except (*Problem, CorruptRecord) as error:
            text = "%s is no dead letter yet"
            self._instance.outages.warn(log, error, text, _name(message))
            return False
        self._failed.dead(message, message.reconsume_times + 1)
        return True

    async def _ask_its_broker(self, message: ReceivedMessage, delay_level: int) -> None:
        stored = message.stored
        header = headers.SendBackHeader(
            offset=stored.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.full_topic,
            unit_mode=False,
            max_reconsume_times=self.retries_max,
        )
        route = await self._instance.route(stored.topic)
        address = route.master(message.broker_name)
        request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self._instance.ask(address, request, TIMEOUT_MS)

    async def send_copy(self, message: ReceivedMessage, reconsume_times: int) -> bool:
        """Send a copy to the retry topic; return whether a broker has stored it.

        Args:
            message: The message.
            reconsume_times: Number of earlier retries.
        """
        topic = names.retry_topic(self._group)
        try:
            stored = message.stored
            properties = dict(stored.properties)
            properties.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
            properties[props.RETRY_TOPIC] = message.full_topic
            properties.pop(props.DELAY, None)
            is_dead = reconsume_times + 1 >= self.retries_max
            if not is_dead:  # otherwise without delay
                properties[props.DELAY] = str(FIRST_DELAY_LEVEL + reconsume_times)
            properties.pop(props.TRANSACTION_PREPARED, None)
            text = java.decode_utf8(props.encode(properties, last_separator=False))
            route = await self._instance.route(topic)
        except (*Problem, CorruptRecord, ValueError) as error:
            text = "%s cannot be sent to %s"
            self._instance.outages.warn(log, error, text, _name(message), topic)
            return False
        queues = random.sample(route.publish_queues, len(route.publish_queues))
        for queue in {candidate.broker_name: candidate for candidate in queues}.values():
            request = self._requests.send(
                topic,
                queue.broker_name,
                queue.queue_id,
                text,
                stored.body,
                self._instance.clock.now_ms(),
                sys_flag=stored.sys_flag & (flags.COMPRESSED | flags.COMPRESSION_TYPE_MASK),
                flag=stored.flag,
                reconsume_times=str(reconsume_times + 1),
                max_reconsume_times=str(self.retries_max),
            )
            try:
                await self._instance.ask(route.master(queue.broker_name), request, TIMEOUT_MS)
            except Problem as error:
                text = "%s is not taken by %s"
                self._instance.outages.warn(log, error, text, _name(message), queue.broker_name)
            else:
                if is_dead:
                    self._failed.dead(message, reconsume_times + 1)
                else:
                    level = FIRST_DELAY_LEVEL + reconsume_times
                    self._failed.after_level(message, reconsume_times + 1, level)
                return True
        return False


def _name(message: ReceivedMessage) -> str:
    """Return the name of a message in log lines, damaged or not."""
    return f"message {message.queue_offset} from {message.broker_name}"
