"""Tests of the SQLite adapter."""
