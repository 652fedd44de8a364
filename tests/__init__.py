"""The tests that need no server."""
