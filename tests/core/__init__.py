"""Tests of dlock_core, without a server."""
