"""Lite topics (5.5): many small topics below one, each with its own queue and subscribers."""
