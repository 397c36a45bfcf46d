"""The name server: routes of topics, and settings that clients share."""
