"""Coverage-guided fuzzing of what reads bytes from strangers: python -m tests.fuzz --minutes 10."""
