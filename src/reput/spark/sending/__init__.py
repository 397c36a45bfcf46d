"""The sink to brokers: rows become messages, messages become requests."""
