"""The checks that scripts/gpu_serve.py makes on GPU machines, over fake GPUs and a tiny model: that they pass where all is well, and fail
where it is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import BINARY

ROOT = Path(__file__).resolve().parents[2]
FAKE = os.environ.get("BATON_FAKE_GPU_BINARY") or str(Path(BINARY).parent / "tests" / "baton-fake-gpu")
pytestmark = pytest.mark.skipif(not os.path.exists(FAKE), reason=f"{FAKE} is not there")


def run(model, *args, **env):
    command = [sys.executable, ROOT / "scripts/gpu_serve.py", *args, "--binary", FAKE, "--model", model, "--gpus", "0,1", "--requests", "120", "--longest", "400",
               "--cycles", "3", "--movers", "cuda_ipc,tcp"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "BATON_FAKE_GPUS": "2", **env}, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("check", ["mixed 2p2d", "2p2d --mover tcp", "snapshots", "cycles", "errors", "start", "gap"])
def test_checks_pass(tiny_model, check):
    code, out = run(tiny_model, *check.split(), **({"BATON_FAKE_GPU_STEP_US": "1500"} if check == "snapshots" else {}))
    assert code == 0 and "\n0 checks failed" in out and "FAIL" not in out, out


def test_a_failed_device_shows(tiny_model, tmp_path):
    code, out = run(tiny_model, "2p2d", BATON_FAKE_GPU_FAIL_AT="40", BATON_FAKE_GPU_FAIL_MARK=str(tmp_path / "failed"), BATON_REPLACEMENT_WAIT_MS="0")
    assert code == 1 and "FAIL" in out, out


def test_an_unknown_check_is_refused(tiny_model):
    code, out = run(tiny_model, "none-of-that-name")
    assert code == 2 and "pd-verify" in out
