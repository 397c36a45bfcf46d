"""What pages ask besides the snapshot: brokers, within a deadline."""
