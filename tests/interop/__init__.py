"""Locks shared with the clients of other languages, which are run for real."""
