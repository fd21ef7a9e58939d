"""Decode attention on compressed bytes: queries as integers, strips of tokens, states that merge.

The numbers are defined in docs/attention.md. Importing this package does not import numba.
"""
