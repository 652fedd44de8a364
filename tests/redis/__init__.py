"""Tests of the Redis adapter; most of them run on a real redis-server."""
