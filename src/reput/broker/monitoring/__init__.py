"""Metrics, health, and checks of the advertised addresses."""
