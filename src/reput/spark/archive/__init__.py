"""Archives: log files as Parquet, with every byte of the log, readable like a store."""
