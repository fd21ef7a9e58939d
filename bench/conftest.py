"""Options and rows of bench/test_rows.py."""

import pytest

from kvcodec.bench.peers import find_peers
from kvcodec.bench.run import choose_rows, list_rows
from kvcodec.bench.scale import FULL, QUICK


def pytest_addoption(parser):
    """--rows and --full"""
    parser.addoption("--rows", help="rows whose names hold this, or match it as file names do")
    parser.addoption("--full", action="store_true", help="arrays as large as kvcodec bench's, and slow rows")


def pytest_generate_tests(metafunc):
    """A test a row."""
    full = metafunc.config.getoption("full")
    rows = choose_rows(list_rows(FULL if full else QUICK), metafunc.config.getoption("rows"), quick=not full)
    metafunc.parametrize("row", rows, ids=lambda row: row.name)


@pytest.fixture(scope="session")
def peers():
    """None: only kvcodec is timed."""
    return find_peers(())
