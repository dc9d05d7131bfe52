"""Generated from proto/octet/v1: the wire, the only contract between processes."""
