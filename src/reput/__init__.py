"""Apache RocketMQ in Python: one byte layout, kept, moved and read in many places.

ARCHITECTURE.md shows the tree, the layers and the invariants.
"""

__version__ = "0.1.0"
