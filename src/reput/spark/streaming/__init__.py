"""Streams: positions, what is behind them in stores and brokers, and micro-batches."""
