"""Faults on real processes and real stores, and the check of what the holders did."""
