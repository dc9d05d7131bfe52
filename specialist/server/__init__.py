"""A specialist replica as a process: gRPC in front, the engine on its own thread."""
