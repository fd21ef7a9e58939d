"""Capture real KV caches: any rotary causal language model on real texts, as dumps that kvcodec reads.

`python -m tools.capture --help` says how. Only `models`, `recorder` and `dumps` need torch and transformers (the
extra `capture`), and only once they are used.
"""
