"""A module beside a script that imports it."""

ANSWER = 42
