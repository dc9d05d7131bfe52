"""One endpoint over all specialists."""
