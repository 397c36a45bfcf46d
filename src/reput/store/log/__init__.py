"""The commit log: its mapped files, for writing and for reading, and how far others have it."""
