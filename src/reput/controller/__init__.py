"""The controller: it elects the masters of replicated brokers, and keeps the in-sync sets."""
