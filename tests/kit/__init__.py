"""Tests of the store kit."""
