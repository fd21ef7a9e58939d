"""Settings of the whole suite: hypothesis finds the same examples in every run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("repeatable"), derandomize=False, max_examples=2000)
settings.load_profile("soak" if os.environ.get("KVCODEC_SOAK") else "repeatable")
