"""The sink to a store folder: rows become records, records become log files."""
