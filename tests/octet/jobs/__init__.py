"""`octet jobs`."""
