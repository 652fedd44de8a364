"""Fences: the recipes, a zombie against each on a real server, and the middleware."""
