"""Settings of the whole suite: hypothesis finds the same examples in every run, what coverage is taken of, and how a
long run goes on where it was interrupted.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.campaigns import SOAK, Passed
from tests.compiling import compile_in_turn

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("repeatable"), derandomize=False, max_examples=2000)
settings.load_profile("soak" if SOAK else "repeatable")

# Modules of tests of what `make test` wants covered: log, flash, codecs and store. A tracer slows Python, of which
# tests' twins and campaigns are made, to half its speed: the other modules run without.
COVERED = {
    f"test_{name}"
    for name in (
        "attention_store", "bounded", "bounded_product", "broken_frames", "bulk_verify", "codecs", "coding", "crash",
        "cut_erase", "damage", "device", "dictionary", "durability", "extents", "failing_units", "faults",
        "forged_sidecar", "formats", "frame_bounds", "golden", "growing", "identity", "lanes", "layers", "lifecycle",
        "live_walks", "machine", "opening", "power_loss", "predicted_logs", "product_logs", "promises", "recovery",
        "repair", "room", "rows", "shapes", "store", "summaries", "takeup", "walks",
    )
}  # fmt: skip


compile_in_turn()


def pytest_addoption(parser):
    parser.addoption("--passed", type=Path, metavar="FILE", help="leave out what passed, as it says; add what does")


class Resumed:
    """Tests that passed before are left out, in all workers alike."""

    def __init__(self, passed):
        self.passed = passed

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["passed"] = self.passed.names

    def pytest_sessionfinish(self, session, exitstatus):
        """All done before is no failure."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed.names:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("passed with the code as it is, in this run or before")
        for line in self.passed.summary():
            terminalreporter.write_line(line)


def pytest_configure(config):
    if config.getoption("passed") and not hasattr(config, "workerinput"):
        config.passed = Passed(config.getoption("passed"))
        config.pluginmanager.register(Resumed(config.passed))


def pytest_collection_modifyitems(config, items):
    """What passed before is left out. The SIMD levels go first: one worker compiles for them while the others begin in
    the middle of the rest.
    """
    known = config.workerinput.get("passed", ()) if hasattr(config, "workerinput") else ()
    if hasattr(config, "passed"):
        known = config.passed.names
    if known := set(known):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
        items[:] = [item for item in items if item.nodeid not in known]
    items.sort(key=lambda item: item.path.stem != "test_simd")
    for item in items:
        if item.path.stem not in COVERED:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture
def forge(tmp_path):
    """A log that is written frame by frame."""
    from tools.golden.forge import Forge  # most tests need none

    forge = Forge(tmp_path / "c", "x")
    yield forge
    forge.device.close()
