"""Real processes, killed and raced, on a real file."""
