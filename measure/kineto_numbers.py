"""The numbers of a trace as its writers spelled them -> columns of integers and floats."""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.measure.kineto import NONE, Floats, Ints
from rankscope.measure.units import NS_PER_US

EXACT_US_MAX = 1 << 43
"""Below it neighboring floats are at most 2^-10 us apart, so the nearest ns is the one that was written."""
TIME_US_MAX = 1 << 52
"""142 years: nothing later is a time, and a start and a duration together stay within 64 bits of ns."""
DIGITS_MAX = 18
"""Digits of a stream's or device's number in a text; this many always fit 64 bits."""
NO_TIME = np.iinfo(np.int64).min
"""Value for a missing time."""


def to_ns(times_us: Sequence[Any]) -> Ints | None:
    """Return microseconds as integer ns, NO_TIME where there is none; None if a float may have lost digits.

    >>> to_ns([4458676522690.655, 3, None])[:2].tolist()
    [4458676522690655, 3000]
    """
    try:
        found = np.array(times_us, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    size = np.abs(found)
    known = size < TIME_US_MAX
    if (size >= EXACT_US_MAX).any() and any(type(time_us) is not int for time_us in times_us):
        return None
    found = np.where(known, found, 0)
    whole = np.floor(found)
    ns = whole.astype(np.int64) * NS_PER_US + np.rint((found - whole) * NS_PER_US).astype(np.int64)
    return np.where(known, ns, NO_TIME)


def one_to_ns(time_us: Any, text: str) -> int:
    """Return one time as `to_ns` does, from its text if a float cannot hold it: the result does not depend on its
    block.
    """
    if type(time_us) in {int, float} and abs(time_us) < EXACT_US_MAX:
        whole = floor(time_us)
        return int(whole * NS_PER_US + round((time_us - whole) * NS_PER_US))
    return parse_us(text)


def parse_us(text: str) -> int:
    """Return the ns of decimal microseconds, to the nearest."""
    try:
        time_us = Decimal(text)
        if abs(time_us) < TIME_US_MAX:
            return int((time_us * NS_PER_US).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        pass
    return NO_TIME


def to_ints(values: list[Any]) -> Ints:
    """Return the values as integers; NONE for a value that is missing, is no integer or does not fit 64 bits."""
    try:
        found: npt.NDArray[Any] = np.array(values)
    except ValueError:  # lists of unequal length
        found = np.empty(0)
    if found.dtype == np.int64 and found.ndim == 1:
        return found
    return np.array([value if is_int64(value) else NONE for value in values], dtype=np.int64)


def to_numbers(values: list[Any]) -> Ints:
    """Return the number of the stream or device in each value, as `number_in` does."""
    found: npt.NDArray[Any] = np.array(values) if all(type(value) is int for value in values) else np.empty(0)
    if found.dtype == np.int64:
        return found
    return to_ints([number_in(value) for value in values])


def is_int64(value: object) -> bool:
    """Return whether the value is an integer that fits a column."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def to_floats(values: list[Any]) -> Floats:
    """Return the values as floats; NaN for what is missing or no number."""
    known = [value if type(value) is float or is_int64(value) else np.nan for value in values]
    return np.array(known, dtype=np.float64)


def number_in(value: object) -> int:
    """Return the number that a value is or ends with: 7 for 7, "7" and "stream 7"; NONE if there is none."""
    if type(value) is int:
        return value
    last = str(value).rpartition(" ")[2]
    return int(last) if last.isdecimal() and len(last) <= DIGITS_MAX else NONE
