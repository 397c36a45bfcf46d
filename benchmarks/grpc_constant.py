"""A gRPC server that answers each call with the same bytes, in a process: ours, or grpcio's.

    python -m benchmarks.grpc_constant own|grpcio

It prints its port, and ends with its standard input.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

Stop = Callable[[], Awaitable[object]]

REPLY = bytes(range(100))
PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"


async def _own() -> tuple[int, Stop]:
    from reput.grpc.http2.grpc import Service, unary
    from reput.grpc.http2.server import GrpcServer

    server = GrpcServer(Service({PATH: unary(lambda call, message: REPLY)}), host="127.0.0.1")
    await server.start()
    return server.port, server.stop


async def _grpcio() -> tuple[int, Stop]:
    import grpc

    async def answer(request: bytes, context: object) -> bytes:
        return REPLY

    # Pings as SDKs send them would end the connection.
    options = [("grpc.http2.max_ping_strikes", 0)]
    server = grpc.aio.server(options=options)
    service, _, method = PATH.strip("/").partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, lambda: server.stop(None)


async def _serve(kind: str) -> None:
    port, stop = await (_own() if kind == "own" else _grpcio())
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await stop()


def main() -> None:
    """Serve until standard input ends."""
    kind = sys.argv[1]
    if kind == "own":
        import uvloop

        uvloop.run(_serve(kind))
    else:
        asyncio.run(_serve(kind))


if __name__ == "__main__":
    main()
