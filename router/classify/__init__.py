"""From a prompt to a distribution over the specialists."""
