"""What stands between a decision and a replica."""
