"""Each module of ``dlock_contrib`` with the framework that it is for."""
