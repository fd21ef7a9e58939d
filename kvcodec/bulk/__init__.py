"""Whole dumps at once: encode, decode, compare."""
