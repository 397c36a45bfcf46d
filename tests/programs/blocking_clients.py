"""A program of a user that type checkers accept: the blocking clients."""

from reput.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    TransactionResult,
    TransactionState,
)
from reput.client.blocking import (
    Admin,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)

NAMESRV = "127.0.0.1:9876"


def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
    print(context.queue, [message.body for message in messages])
    return ConsumeResult.SUCCESS


def listen_without_result(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    print(context.queue, len(messages))


def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT if message.keys else TransactionState.ROLLBACK


def send() -> list[SendResult]:
    with Producer("shop", namesrv=NAMESRV) as producer:
        queue: MessageQueue = producer.queues("Orders")[0]
        result: SendResult = producer.send(Message("Orders", b"one"), queue=queue)
        producer.send_oneway(Message("Orders", b"two"), sharding_key="7")
        answer: ReceivedMessage = producer.request(Message("Orders", b"three"))
        producer.reply(answer, b"thanks")
        producer.send("Orders")  # type: ignore[arg-type]
        producer.sent(Message("Orders", b"four"))  # type: ignore[attr-defined]
        return [result, producer.send_batch([Message("Orders", b"five")])]


def send_in_transaction() -> bool:
    with TransactionProducer("shop", namesrv=NAMESRV, check=check) as producer:
        producer.send(Message("Orders", b"one"))
        producer.send_many([Message("Orders", b"two")], timeout_ms=1_000)
        producer.recall("Orders", "handle")
        producer.queues("Orders")
        result: TransactionResult = producer.send_in_transaction(
            Message("Orders", b"three"), lambda message, half: TransactionState.COMMIT
        )
        return result.is_settled


def push() -> list[MessageQueue]:
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with PushConsumer("billing", namesrv=NAMESRV, listener=listen, config=config) as consumer:
        consumer.subscribe("Orders", "new || paid")
        consumer.ready()
        is_ready: bool = consumer.is_ready()
        print(is_ready)
        consumer.subscribe_sql("Prices", "amount > 5")
        consumer.unsubscribe("Prices")
        consumer.pause()
        consumer.resume()
        consumer.subscribe(5)  # type: ignore[arg-type]
        return consumer.queues()


def pull() -> list[bytes]:
    with PullConsumer("billing", namesrv=NAMESRV, auto_commit=False) as consumer:
        consumer.subscribe("Orders")
        consumer.subscribe_sql("Prices", "amount > 5")
        consumer.unsubscribe("Prices")
        for message in consumer:
            body: bytes = message.body
            print(body, consumer.position(message.queue))
            break
        polled = consumer.poll(count_max=10)
        consumer.commit()
        return [message.body for message in polled]


def pop() -> None:
    PopConsumer("billing", namesrv=NAMESRV, listener=listen_without_result)
    with PopConsumer("billing", namesrv=NAMESRV) as consumer:
        consumer.subscribe("Orders")
        consumer.subscribe_sql("Prices", "amount > 5")
        consumer.unsubscribe("Prices")
        for message in consumer.pop(timeout_ms=20_000):
            consumer.extend(message)
            consumer.ack(message)


def administer() -> int:
    with Admin(NAMESRV) as admin:
        admin.create_topic("Orders", broker="127.0.0.1:10911")
        return admin.max_offset(MessageQueue("Orders", "broker-a", 0))
