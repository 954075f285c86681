"""The frameworks that people train with, run with and without the monitor. `make test-frameworks` runs them."""
