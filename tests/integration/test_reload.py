"""SIGHUP: what is taken over while the server runs, and what waits for its next start; and what the program says it is."""

import json
import re
import signal
import subprocess

import pytest
from harness import BINARY, Server, wait_for


def settings_file(path, **settings):
    path.write_text(json.dumps(settings))
    return str(path)


def test_sighup_takes_over_keys_and_the_log_level(tmp_path):
    path = tmp_path / "c.json"
    with Server(extra=["--config", settings_file(path, api_keys=["old-key"], log_level="info")], headers={"Authorization": "Bearer old-key"}) as server:
        status = lambda key: server.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code  # noqa: E731

        def reloaded(count, event="settings.reloaded"):
            server.process.send_signal(signal.SIGHUP)
            return wait_for(lambda: len(found := server.lines(event)) == count and found[-1], 5, f"{count} x {event}")

        settings_file(path, api_keys=["new-key"], inference_api_keys=["user-key"], log_level="debug", http_threads=3)
        line = reloaded(1)
        assert re.search(r'taken="?api_keys,inference_api_keys,log_level"?', line) and re.search(r'at_the_next_start="?http_threads"?', line), line
        assert [status(k) for k in ("old-key", "new-key", "user-key")] == [401, 200, 200]
        # A fault changes nothing, and is told.
        path.write_text('{"api_keys": ["a"], "api_keys": ["b"]}')
        assert "stands there twice" in reloaded(1, "settings.reload_failed")
        assert status("new-key") == 200
        # Whether keys are asked for at all is settled at the start.
        settings_file(path)
        assert re.search(r'at_the_next_start="?api_keys,inference_api_keys,http_threads"?|at_the_next_start="?api_keys,inference_api_keys"?', reloaded(2))
        assert [status(k) for k in ("new-key", "none")] == [200, 401]
        assert not any(key in server.log() for key in ("old-key", "new-key", "user-key"))


@pytest.mark.parametrize("command", ["serve", "supervisor"])
def test_sighup_without_anything_to_read_ends_nobody(command):
    with Server(command=command) as server:
        server.process.send_signal(signal.SIGHUP)
        server.awaited("settings.reloaded")
        assert server.http.get("/health").status_code == 200


def test_it_says_what_it_was_built_from(pd):
    out = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout
    version, details = re.fullmatch(r"baton (\d+\.\d+\.\d+) \((.*)\)\n", out).groups()
    answer = pd.http.get("/v1/cluster/version").json()
    assert answer["version"] == version and answer["compiler"] in details and answer["build_type"] in details
    assert answer["full-revisionid"] is None or answer["full-revisionid"] in details
    ((labels, value),) = pd.metrics()["baton_build_info"]
    assert value == 1 and labels["version"] == version and labels["compiler"] == answer["compiler"]
