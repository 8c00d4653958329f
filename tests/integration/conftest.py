import os

import harness
import pytest


def pytest_collection_modifyitems(items):
    missing = [n for n, v in (("BATON_BINARY", harness.BINARY), ("BATON_TEST_MODEL", harness.MODEL)) if not v or not os.path.exists(v)]
    if missing:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"{' and '.join(missing)} not set to existing files"))


@pytest.fixture(scope="module")
def pd():
    """A 1P1D deployment that a module's tests share."""
    with harness.Server() as server:
        server.launch("1p1d")
        yield server
