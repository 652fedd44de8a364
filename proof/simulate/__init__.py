"""Seeded simulation: many schedules of clients with bad networks, wrong clocks and bad stores."""
