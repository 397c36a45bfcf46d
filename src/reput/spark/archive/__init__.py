"""Archives: log files as Parquet, with every byte of the log, read as a store is."""
