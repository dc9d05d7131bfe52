"""Tests of `octet why`, which explains a request."""
