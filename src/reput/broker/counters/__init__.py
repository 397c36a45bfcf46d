"""Counters of what a broker does."""
