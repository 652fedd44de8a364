"""The MySQL adapter by itself, on a MariaDB of its own."""
