"""What happens at every point at which Python may run something else inside our code: a signal handler, a finalizer, another thread.

:mod:`proof.interrupts.points` finds the points, :mod:`proof.interrupts.blocking` and :mod:`proof.interrupts.tasks` try each of them
in one colour, ``python -m proof.interrupts`` sweeps over all.
"""
