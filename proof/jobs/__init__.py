"""Elections and jobs that run once: the shipped client under virtual time, simulated by seeds, and explored schedule by schedule."""
