"""Delivery of messages at individual times."""
