"""Keepers: the files of a store. Synchronous; knows no tasks, threads or sockets."""
