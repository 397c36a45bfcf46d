"""Settings of a broker: broker.conf, and changes at run time."""
