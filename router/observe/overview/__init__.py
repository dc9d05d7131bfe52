"""The overview for dashboard and `octet top`, with findings."""
