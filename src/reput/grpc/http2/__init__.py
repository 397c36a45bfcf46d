"""HTTP/2 and gRPC: the transport of RocketMQ's 5.x clients, written for one event loop.

    bytes of a read -> Http2Connection -> Call -> method -> Call.reply -> bytes of one write

    hpack.py       header blocks; huffman.py the code of their strings
    frames.py      frames and their numbers
    connection.py  the server's side of a connection, without I/O: streams, windows, floods
    grpc.py        calls and methods, without I/O; messages.py and status.py
    channel.py     a connection on the event loop
    server.py      a port, plain and TLS

A server::

    def send_message(call: Call, message: bytes) -> bytes:  # or a future, or None
        if not call.text("x-mq-client-id"):
            raise CallFailed(Status.INVALID_ARGUMENT, "x-mq-client-id is missing")
        return reply


    def receive_message(call: Call, message: bytes) -> None:  # a stream of replies
        call.send(first, second)
        call.finish()  # now or later


    def telemetry(call: Call) -> None:  # a stream each way
        call.on_message = lambda message: call.send(message)
        call.on_cancel = lambda: forget(call)


    service = Service(
        {
            "/apache.rocketmq.v2.MessagingService/SendMessage": unary(send_message),
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage": server_stream(receive_message),
            "/apache.rocketmq.v2.MessagingService/Telemetry": bidirectional(telemetry),
        }
    )
    server = GrpcServer(service, port=8081, state=ServerState(tls=settings))
    await server.start()
    ...
    await server.stop(grace_s=1.0)

A method gets its call with ``call.headers`` (bytes by name), ``call.text(name)``,
``call.deadline`` in the loop's seconds, ``call.peer`` with addresses, and ``call.state`` for its
own use. It must return soon: everything runs on the loop. With ``None``, a unary method promises
``call.reply(message)`` or ``call.fail(status, reason)`` from any later callback; ``call.on_cancel``
is called if the client no longer waits. A coroutine runs at once, and becomes a task when it waits:
until then it must not use what needs a task, such as ``asyncio.timeout``.

A method that is ``paced()`` gets its message as it was sent, and shares the time of the loop with
all others: it awaits ``call.turn()``, checks the caller, then awaits ``call.content(sent)``, which
inflates in steps, and ``call.pause()`` in loops. A bidirectional one takes messages from
``call.inbox`` when its ``on_message`` is called.

``call.send`` never blocks. A stream that produces much checks ``call.is_writable``, and continues
in ``call.when_writable``: what a client does not read is kept in memory, and a call that is begun
while a connection keeps more than ``http2_unsent_bytes`` is refused.
"""
