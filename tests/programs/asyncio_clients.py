"""A program of a user that type checkers accept: the asyncio clients."""

from reput.client import (
    Admin,
    ConsumeContext,
    ConsumeResult,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
    TransactionState,
)

NAMESRV = "127.0.0.1:9876"


async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
    print(context.queue, [message.body for message in messages])
    return ConsumeResult.SUCCESS


async def listen_without_result(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    print(context.queue, len(messages))


async def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT if message.keys else TransactionState.ROLLBACK


async def send() -> SendResult:
    async with Producer("shop", namesrv=NAMESRV) as producer:
        await producer.send(Message("Orders", "text"))  # type: ignore[arg-type]
        await producer.send_many(Message("Orders", b"%d" % number) for number in range(9))
        await producer.send_many(
            [Message("Orders", b"one", keys="7")], sharding_key=lambda message: str(message.keys)
        )
        await producer.send(Message("Orders", b"one"), sharding_key=7)  # type: ignore[arg-type]
        return await producer.send(
            Message("Orders", b"one"), queue=lambda queues, message: queues[0]
        )


async def send_in_transaction() -> bool:
    async def execute(message: Message, half: SendResult) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer("shop", namesrv=NAMESRV, check=check) as producer:
        result = await producer.send_in_transaction(Message("Orders", b"one"), execute)
        return result.is_settled


async def consume() -> list[MessageQueue]:
    async def on_queues(queues: list[MessageQueue]) -> None:
        print(queues)

    async with PushConsumer(
        "billing", namesrv=NAMESRV, listener=listen, on_assigned=on_queues, on_revoked=print
    ) as push:
        await push.subscribe("Orders")
        await push.ready(timeout_ms=5_000)
        queues = push.queues()
    async with PullConsumer("billing", namesrv=NAMESRV) as pull:
        await pull.subscribe("Orders")
        async for message in pull:
            tags: str | None = message.tags
            print(tags)
            break
    async with PopConsumer("billing", namesrv=NAMESRV, listener=listen_without_result) as pop:
        await pop.subscribe("Orders")
    return queues


async def administer() -> int:
    async with Admin(NAMESRV) as admin:
        return await admin.max_offset(MessageQueue("Orders", "broker-a", 0))
