"""A module that the package's script imports relatively."""

ANSWER = 42
