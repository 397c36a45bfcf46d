"""Stores of RocketMQ in other forms: with the log in DLedger, with queues and tables in RocksDB.

They are read here, for ``reput store``, ``reput pipeline convert`` and ``reput broker --check``;
nothing else of reput knows them.
"""
