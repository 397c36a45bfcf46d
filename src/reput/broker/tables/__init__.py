"""Small tables on disk: saving, and recovery of lost ones."""
