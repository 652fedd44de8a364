"""Tests of the PostgreSQL adapter; most of them run on a real redis-server."""
