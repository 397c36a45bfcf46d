"""Fixtures of attacks: the servers that those of a module share."""

from hostile.local_scene import scenes

__all__ = ["scenes"]
