"""The service that the 5.x clients call: RocketMQ's gRPC methods over the parts of a broker."""
