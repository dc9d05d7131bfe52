"""What every process measures with."""
