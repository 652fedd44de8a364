"""Mutants: the shipped protocol with one text changed, each of which exploration, simulation or a test must notice."""
