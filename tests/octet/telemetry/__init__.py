"""What all processes share to tell how they fare."""
