"""Replication of the log and the tables between a master and its slaves."""
