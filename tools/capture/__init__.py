"""Capture real KV caches: any rotary causal language model on real texts, as dumps that kvcodec reads.

`python -m tools.capture --help` says how. Its texts and names need no torch and transformers (the extra `capture`);
what runs a model needs them, once it is used.
"""
