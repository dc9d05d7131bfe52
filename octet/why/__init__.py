"""The story of one request, in plain words."""
