"""The overview for the dashboard and `octet top`, with findings."""
