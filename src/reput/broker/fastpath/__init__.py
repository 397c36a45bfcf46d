"""Shortcuts for the common requests. Without them, the processors serve every request.

A shortcut handles many requests of one read without a command, a header and a reply each. What it
does not handle falls back to the processor, in its place: both give the same records, replies and
statistics. ``reputFastPath=false`` switches all of them off, and so does the lack of compiled
kernels.
"""
