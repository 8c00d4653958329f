import json
import os
from pathlib import Path

import contract
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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The tiny Qwen3 of the unit tests, with a longer context."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    for file in (Path(__file__).resolve().parents[1] / "data/model/qwen3").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="session", params=["hybrid", "1p1d"])
def surface(request, tmp_path_factory):
    """Each deployment in turn, for the tests of the OpenAI surface."""
    server = contract.serve(request.param, tmp_path_factory.mktemp("speaker"))
    with server:
        yield contract.Contract(server, request.param)


@pytest.fixture
def api(surface):
    """The surface; after the test everything still serves and no process has died."""
    yield surface
    surface.alive()
