"""Bytes: the layouts of RocketMQ as pure functions. No I/O, clock, logging or tasks."""
