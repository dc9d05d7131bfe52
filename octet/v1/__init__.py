"""Generated protobuf messages of octet.v1."""
