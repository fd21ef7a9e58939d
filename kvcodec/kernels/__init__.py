"""Compiled loops: arrays in, arrays out. A kernel never allocates, validates or raises; its caller does.

Everything is bit-identical on every machine: no fastmath, float operations in a fixed order only.
tests/reference.py, and of attention tests/attention_twin.py, hold a naive twin of each kernel under the same name.
"""
