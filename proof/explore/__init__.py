"""Exhaustive exploration: every world that a few clients of one key can reach, breadth first."""
