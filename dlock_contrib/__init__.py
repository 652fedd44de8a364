"""Locks in other people's frameworks: one module for each, which alone imports the framework and has an extra of its name."""
