"""The workflow that is started by hand runs the verification test of prefill/decode on two GPUs: what it says, and that this exists."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github/workflows/pd-gpu.yml"
SCRIPT = "scripts/pd_verify.py"


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load(WORKFLOW.read_text())


@pytest.fixture(scope="module")
def job(workflow):
    assert len(workflow["jobs"]) == 1
    return next(iter(workflow["jobs"].values()))


def commands(job):
    """The words of each command of the job that runs the script."""
    runs = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    return [shlex.split(line) for line in runs if SCRIPT in line]


def script():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location("pd_verify", ROOT / SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


def test_it_starts_by_hand_alone(workflow):
    on = workflow[True]  # YAML's word `on`
    assert list(on) == ["workflow_dispatch"]


def test_the_runners_label_is_an_input_and_chooses_the_runner(workflow, job):
    label = workflow[True]["workflow_dispatch"]["inputs"]["runner"]
    assert label["required"] is True and label["type"] == "string"
    assert job["runs-on"] == ["self-hosted", "${{ inputs.runner }}"]


def test_every_expression_names_an_input_that_is_declared(workflow):
    declared = set(workflow[True]["workflow_dispatch"]["inputs"])
    used = set(re.findall(r"inputs\.(\w+)", WORKFLOW.read_text()))
    assert used == declared


def test_it_runs_the_script_with_both_movers_on_two_gpus(job):
    found = commands(job)
    movers = set()
    for words in found:
        options = dict(zip(words, words[1:]))
        assert options["--gpus"] == "0,1"
        assert options["--binary"] == "build/release/baton"
        movers |= set(options["--movers"].split(","))
    assert movers == {"cuda_ipc", "nccl"}
    assert (ROOT / SCRIPT).exists()


def test_the_variable_is_set_and_the_script_reads_all_of_them(job, monkeypatch):
    env = job["env"]
    assert env["BATON_TEST_PD_GPU"] == "1"
    module = script()
    for name in os.environ:
        if "TEST_PD_" in name:
            monkeypatch.delenv(name)
    for name in env:
        assert name.startswith("BATON_TEST_PD_")
        monkeypatch.setenv(name, "1" if name.endswith("_GPU") else str(WORKFLOW) if name.endswith("_PATH") else "7")
    read = module.Settings()
    assert (read.path, read.name, read.size) == (str(WORKFLOW), "7", 7)


def test_no_step_can_fail_unseen(job):
    assert not any(step.get("continue-on-error") for step in job["steps"]) and not job.get("continue-on-error")
    for step in job["steps"]:
        assert not re.search(r"\|\|\s*true", step.get("run", ""))
        # Steps that are left out under a condition: only the model's, and none of those that verify.
        if SCRIPT in step.get("run", ""):
            assert step.get("if") in (None, "success() || failure()")


def test_what_the_steps_call_exists(job):
    text = "\n".join(step.get("run", "") for step in job["steps"])
    for path in re.findall(r"scripts/[\w.-]+", text):
        assert (ROOT / path).exists(), path
    assert "fetch_model() {" in (ROOT / "scripts/lib.sh").read_text()
