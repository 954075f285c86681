"""Fuzz, guided by coverage, what reads untrusted bytes: python -m tests.fuzz --minutes 10."""
