"""The files of a store. Synchronous, without tasks, threads or sockets."""
