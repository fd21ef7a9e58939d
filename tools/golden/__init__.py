"""Golden logs: what is in tests/golden, how each log is made, and index.json, which says what to expect of it."""
