"""Groups: their members, settings and locks."""
