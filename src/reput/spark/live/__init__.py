"""Running brokers: their queues become tasks, replies to pulls become rows."""
