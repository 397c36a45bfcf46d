"""Pop consumption of 5.x: messages of any queue, acknowledged individually."""
