"""The tables in config/: topics, groups, offsets and more, each replaced as a whole."""
