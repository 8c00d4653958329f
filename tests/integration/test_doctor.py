"""`baton doctor`: what it finds of this host is so, and what is wrong is said with what to do."""

import json
import os
import resource
import socket
import subprocess

import harness
import pytest


def doctor(*args, expect=0, **keys):
    r = subprocess.run([harness.BINARY, "doctor", "--json", *args], capture_output=True, text=True, timeout=60 * harness.PATIENCE, **keys)
    assert r.returncode == expect, r.stdout + r.stderr
    return {f["what"]: f for f in json.loads(r.stdout)["findings"]}


@pytest.fixture
def folders(tmp_path):
    return "--state-dir", str(tmp_path / "state"), "--cache-dir", str(tmp_path / "cache")


def test_a_fit_host_is_called_fit(folders, tmp_path):
    found = doctor("--port", str(harness.free_port()), *folders)
    assert {"processor", "memory", "/dev/shm", "open files", "state folder", "cache folder", "HTTP port", "NVIDIA driver"} <= set(found)
    assert all(f["state"] != "bad" for f in found.values())
    assert str(os.cpu_count()) in found["processor"]["found"]
    assert not (tmp_path / "state").exists()  # it only looks
    text = subprocess.run([harness.BINARY, "doctor", "--port", "0", *folders], capture_output=True, text=True)
    assert text.returncode == 0 and text.stdout.rstrip().endswith("This host can serve.")


def test_a_port_in_use_is_named_with_advice(folders):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        found = doctor("--port", str(port), *folders, expect=1)["HTTP port"]
    assert found["state"] == "bad" and str(port) in found["found"] and "baton status" in found["advice"]


def test_folders_that_cannot_be_written_are_bad(folders, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    found = doctor("--port", "0", "--state-dir", str(file / "below"), "--cache-dir", str(tmp_path / "c"), expect=1)
    assert found["state folder"]["state"] == "bad" and "--state-dir" in found["state folder"]["advice"]
    assert found["cache folder"]["state"] != "bad"
    assert doctor("--port", "0", "--state-dir", "/proc/x", "--cache-dir", str(tmp_path / "c"), expect=1)["state folder"]["state"] == "bad"
    assert list(tmp_path.iterdir()) == [file]


def test_few_open_files_are_a_warning(folders):
    found = doctor("--port", "0", *folders, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)))["open files"]
    assert found["state"] == "warning" and "512" in found["found"] and "LimitNOFILE" in found["advice"]


def test_an_open_server_without_keys_is_a_warning(folders):
    assert doctor("--port", "0", "--host", "0.0.0.0", *folders)["keys"]["state"] == "warning"
    assert "keys" not in doctor("--port", "0", "--host", "0.0.0.0", *folders, env={**os.environ, "BATON_API_KEYS": "k"})
    assert doctor("--port", "0", "--host", "192.0.2.1", *folders, expect=1)["HTTP port"]["state"] == "bad"


def test_a_model_is_looked_at(folders, tmp_path):
    good = doctor("--port", "0", *folders, "--model", harness.MODEL)["model"]
    assert good["state"] == "good" and "llama" in good["found"]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 60)
    bad = doctor("--port", "0", *folders, "--model", str(broken), expect=1)["model"]
    assert bad["state"] == "bad" and "broken.gguf" in bad["found"] and "docs/MODELS.md" in bad["advice"]


def test_wrong_settings_are_a_usage_error(folders):
    r = subprocess.run([harness.BINARY, "doctor", "--port", "70000", *folders], capture_output=True, text=True)
    assert r.returncode == 2 and "port" in r.stderr
