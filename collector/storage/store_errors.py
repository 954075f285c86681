"""Errors of a store beside that it cannot be used."""

from rankscope.measure.errors import UnavailableError


class DamagedStoreError(UnavailableError):
    """The file is damaged, or no database; tables of a server are gone."""


class RefusedRowError(UnavailableError):
    """A row is refused, which does not mean that anything is wrong with the store."""
