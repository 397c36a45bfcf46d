"""Small tables on disk: when they are written, and what happens if one is lost."""
