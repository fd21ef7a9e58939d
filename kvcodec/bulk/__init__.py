"""Whole dumps and logs at once: encode, decode, compare, verify."""
