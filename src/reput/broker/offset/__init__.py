"""Consumer offsets: rules for those that clients commit, and those that operators set."""
