"""The command ``dlock``. Needs click and rich, the extra ``cli``. Private: use it as a program."""
