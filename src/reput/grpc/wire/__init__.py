"""The messages of the 5.x clients: the codec of protobuf, and the tables of the service."""
