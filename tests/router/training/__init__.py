"""Laws of training."""
