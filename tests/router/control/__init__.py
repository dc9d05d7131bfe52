"""What operators and machines change while everything serves."""
