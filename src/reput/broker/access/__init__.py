"""Access control: who may send which request."""
