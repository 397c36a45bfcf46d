"""Decisions of the clients, without sockets, tasks or clocks: times are arguments."""
