"""The name server: who knows where a topic lives."""
