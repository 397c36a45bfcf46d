"""The controller: it elects the masters of replicated brokers, and remembers who is in sync."""
