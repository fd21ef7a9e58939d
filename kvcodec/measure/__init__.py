"""Measurements: error of rows, logits and attention outputs; bytes that a cache must take."""
