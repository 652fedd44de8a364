"""Which process this is: a forked child has the memory of its parent, and none of its locks."""

from __future__ import annotations

import os

__all__ = ["generation"]

_generation = 0


def _forked() -> None:
    global _generation  # noqa: PLW0603  # the one fact about the process; reading a variable is what makes the check free
    _generation += 1


def generation() -> int:
    """Return a number that differs between a process and its forked children; read before any mutex is touched."""
    return _generation


# A mutex may be held, in the child for ever, by a thread that only the parent has: no check may need one, nor a system call.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
