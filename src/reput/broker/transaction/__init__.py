"""Half messages, their decisions, and the checks that ask producers."""
