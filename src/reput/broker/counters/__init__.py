"""Counters of requests and messages."""
