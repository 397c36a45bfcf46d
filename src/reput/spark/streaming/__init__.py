"""Streams: positions, queues of stores and brokers, and micro-batches."""
