"""What stands between a decision and a replica: who serves, on which lane, what is refused, what is shadowed. Pure."""
