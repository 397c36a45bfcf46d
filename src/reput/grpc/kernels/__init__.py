"""Kernels of busy gRPC connections: frames to requests, and replies to frames.

``http2_calls`` reads frames, with ``hpack`` for header blocks. ``grpc_calls`` makes requests of the
broker from sends and acks, and their replies; ``grpc_delivery`` makes replies from records. They
share rows of words with Python: ``call_words``, ``delivery_words``. Without compiled kernels each
call takes the slow path.
"""
