"""Filters of consumers: tags and SQL92 expressions."""
