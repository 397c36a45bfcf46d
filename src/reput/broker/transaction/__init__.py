"""Transactions: half messages, their ends, and the checks with producers."""
