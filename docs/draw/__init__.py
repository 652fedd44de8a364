"""The pictures of the documentation, drawn by ``make docs`` from the code, from what was measured, and from a run of the library."""
