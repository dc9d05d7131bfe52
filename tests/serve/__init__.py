"""`octet serve`."""
