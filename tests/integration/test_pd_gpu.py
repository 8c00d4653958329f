"""The verification test of prefill/decode separation (scripts/pd_verify.py): on GPUs where BATON_TEST_PD_GPU is 1, and over fake GPUs,
where it must also fail when it should."""

import os
import sys
from pathlib import Path

import pytest
from harness import BINARY, MODEL

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import pd_verify  # noqa: E402
from serving import Report  # noqa: E402

FAKE = os.environ.get("BATON_FAKE_GPU_BINARY") or str(Path(BINARY).parent / "tests" / "baton-fake-gpu")
needs_fake = pytest.mark.skipif(not os.path.exists(FAKE), reason=f"{FAKE} is not there")


@pytest.mark.parametrize("mover", (pd_verify.from_environment("MOVERS") or "cuda_ipc,nccl").split(","))
def test_prefill_and_decode_on_gpus(mover):
    report = Report()
    try:
        settings = pd_verify.Settings()
        settings.movers = [mover]
        pd_verify.verify(BINARY, report, settings)
    except pd_verify.CannotRun as e:
        pytest.skip(str(e))
    assert not report.failures


def over_fake_gpus(gpus, movers, model=MODEL, **extra):
    report = Report()
    settings = pd_verify.Settings({"GPU": "1", "MODEL_PATH": str(model), "MOVERS": movers})
    settings.extra, settings.max_tokens = extra, 4  # the fake GPU is a thread
    pd_verify.verify(FAKE, report, settings, env={"BATON_FAKE_GPUS": str(gpus)})
    return report.failures


@needs_fake
def test_it_passes_over_fake_gpus(tiny_model):
    assert over_fake_gpus(2, "cuda_ipc") == []
    assert over_fake_gpus(1, "tcp", tiny_model) == []


@needs_fake
def test_it_fails_where_the_kv_does_not_arrive(tiny_model):
    failures = over_fake_gpus(2, "cuda_ipc", tiny_model, fault="fail_pulls")
    assert any("kv.staged and kv.loaded once for 0 of" in f for f in failures)
    assert any("fallbacks" in f for f in failures)


@needs_fake
def test_it_fails_where_another_mover_carries_the_kv(tiny_model):
    failures = over_fake_gpus(2, "cuda_ipc", tiny_model, mover="tcp")
    assert any("kv.staged and kv.loaded once for 0 of" in f for f in failures)


@needs_fake
def test_without_a_gpu_or_the_variable_it_says_so(monkeypatch):
    with pytest.raises(pd_verify.CannotRun, match="sees no GPU"):
        over_fake_gpus(0, "cuda_ipc")
    for prefix in ("BATON", "XINFERENCE"):
        monkeypatch.delenv(prefix + "_TEST_PD_GPU", raising=False)
    with pytest.raises(pd_verify.CannotRun, match="BATON_TEST_PD_GPU is not 1"):
        pd_verify.Settings()


def test_the_specifications_names_are_aliases(monkeypatch, tmp_path):
    for name in list(os.environ):
        if "TEST_PD_" in name:
            monkeypatch.delenv(name)
    for name, value in (("GPU", "1"), ("MODEL_PATH", str(tmp_path)), ("MODEL_NAME", "qwen3"), ("MODEL_SIZE", "0_6")):
        monkeypatch.setenv("XINFERENCE_TEST_PD_" + name, value)
    s = pd_verify.Settings()
    assert (s.path, s.name, s.size, s.movers) == (str(tmp_path), "qwen3", "0_6", ["cuda_ipc", "nccl"])
