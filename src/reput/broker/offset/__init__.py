"""Consumer offsets: rules for commits of clients, and resets by operators."""
