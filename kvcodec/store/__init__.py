"""Sequences of tokens over a log: residual window, sinks, groups, and reading any tokens back."""
