"""The PostgreSQL adapter by itself, on real servers."""
