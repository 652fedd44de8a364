"""The engine: everything that performs what the machine in :mod:`dlock_core.lease` asks for. Private to the core."""
