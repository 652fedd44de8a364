"""What docs/coming-from-other-clients.md says of ours is true."""
