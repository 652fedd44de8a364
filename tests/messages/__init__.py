"""The messages that mistakes of first use meet."""
