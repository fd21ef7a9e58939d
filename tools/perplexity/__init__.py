"""What a codec costs a model in its own words: how far next-token distributions move when the KV cache is coded.

`python -m tools.perplexity --help` says how. It needs what tools/capture needs: torch and transformers.
"""
