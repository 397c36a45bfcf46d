"""The queues: a unit for each message, in files for writing and for reading."""
