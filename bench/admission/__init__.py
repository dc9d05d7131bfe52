"""More is asked of a replica than it can do: who is served, who is refused, and whether what was said came true."""
