"""What clients decide, without a socket, a task or a clock: times are arguments."""
