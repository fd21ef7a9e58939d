"""Dictionaries: training them, and the .kvdict files that hold them."""
