"""A Django project with one app, for the tests of ``dlock_contrib.django``."""
