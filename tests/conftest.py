"""Settings of the whole suite: hypothesis finds the same examples in every run, and what coverage is taken of."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.compiling import compile_in_turn

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("repeatable"), derandomize=False, max_examples=2000)
settings.load_profile("soak" if os.environ.get("KVCODEC_SOAK") else "repeatable")

# Modules of tests of what `make test` wants covered: log, flash, codecs and store. A tracer slows Python, of which
# tests' twins and campaigns are made, to half its speed: the other modules run without.
COVERED = {
    f"test_{name}"
    for name in (
        "attention_store", "bounded", "bounded_product", "bulk_verify", "codecs", "coding", "crash", "damage", "device",
        "dictionary", "durability", "extents", "failing_units", "faults", "formats", "golden", "growing", "identity",
        "layers", "lifecycle", "machine", "opening", "power_loss", "predicted_logs", "product_logs", "promises",
        "repair", "rows", "shapes", "store", "summaries",
    )
}  # fmt: skip


compile_in_turn()


def pytest_collection_modifyitems(items):
    """The SIMD levels go first: one worker compiles for them while the others begin in the middle of the rest."""
    items.sort(key=lambda item: item.path.stem != "test_simd")
    for item in items:
        if item.path.stem not in COVERED:
            item.add_marker(pytest.mark.no_cover)
