"""The index of message keys: its files, for writing and for reading, and searches in them."""
