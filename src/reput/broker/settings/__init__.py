"""Settings of a broker: broker.conf, and what of it changes while the broker runs."""
