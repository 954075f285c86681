"""A package whose training is run with -m."""
