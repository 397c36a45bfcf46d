"""Processors: one function for each request code, listed in ``table``.

A processor decodes the header, calls the parts of the broker, and encodes the reply.
"""
