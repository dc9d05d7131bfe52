"""What processes tell of themselves: traces and logs."""
