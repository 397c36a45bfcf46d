"""What opens a store: repairs after a crash, derivations from the log, a watch over its files."""
