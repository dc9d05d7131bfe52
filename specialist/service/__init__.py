"""The replica as a process: gRPC in front, the engine in a thread of its own, one hand-over a step between them."""
