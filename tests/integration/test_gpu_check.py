"""scripts/gpu_checks.py, the half of scripts/gpu-check for a machine with GPUs, over stand-ins for nvidia-smi and the suite's programs."""

import gzip
import hashlib
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from harness import wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import gpu_checks  # noqa: E402
from gpu_checks import SLOTS, Check  # noqa: E402

MODEL = os.urandom(50_000)
PROGRAM = b'#!/bin/sh\necho "GPU $CUDA_VISIBLE_DEVICES: $*"\necho "[  PASSED  ] 2 tests."\nexec "$@"\n'


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Two GPUs and a pack of several parts, none of which has come yet."""
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nprintf '0, Some GPU, 580.1, 143771 MiB\\n1, Some GPU, 580.1, 143771 MiB\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, path in (("PACK", "pack"), ("KEEP", "keep"), ("SUITE", "keep/suite"), ("LOGS", "logs")):
        monkeypatch.setattr(gpu_checks, name, tmp_path / path)
    monkeypatch.setattr(gpu_checks, "CHECKS", [])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (("./program", PROGRAM), ("./lib/filler", os.urandom(20_000))):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    programs = lzma.compress(out.getvalue())
    whole = programs + gzip.compress(MODEL, 1)
    parts = {f"part.{i:02}": whole[i * 9_000:(i + 1) * 9_000] for i in range(-(-len(whole) // 9_000))}
    index = {"programs": len(programs), "model": "model.gguf", "parts": {n: hashlib.sha256(d).hexdigest() for n, d in parts.items()}}
    return tmp_path / "pack", parts, json.dumps(index)


def come(machine, names):
    """These parts lie where a call brought them, alone."""
    pack, parts, index = machine
    pack.mkdir(exist_ok=True)
    for old in pack.iterdir():
        old.unlink()
    (pack / "index.json").write_text(index)
    for name in names:
        (pack / name).write_bytes(parts[name])
    gpu_checks.receive()


def check(name, gpus="one", command=("true",), **more):
    gpu_checks.CHECKS.append(Check(name, "kernels", gpus, 1, lambda c, g: [[gpu_checks.SUITE / "program", *command]], **more))


def test_programs_are_there_before_all_parts_have_come(machine, capsys):
    names = list(machine[1])
    come(machine, names[:3])
    assert gpu_checks.programs_there() and gpu_checks.gguf() is None
    assert f"model: missing; still to come: {' '.join(names[3:])}" in capsys.readouterr().out
    come(machine, names[3:])
    assert gpu_checks.gguf().read_bytes() == MODEL


def test_a_changed_part_is_refused(machine):
    machine[1]["part.01"] = b"x" + machine[1]["part.01"][1:]
    with pytest.raises(SystemExit, match="part.01 is not the part"):
        come(machine, machine[1])


def test_another_pack_replaces_the_first(machine):
    come(machine, machine[1])
    pack, parts, index = machine
    with pytest.raises(SystemExit, match="no pack"):
        (gpu_checks.KEEP / "index.json").unlink()
        (pack / "index.json").unlink()
        gpu_checks.receive()
    come((pack, parts, json.dumps({**json.loads(index), "model": "other.gguf"})), list(parts)[:1])
    assert not gpu_checks.programs_there() and gpu_checks.gguf() is None


def test_a_damaged_index_is_named_and_does_not_stay(machine):
    pack, parts, index = machine
    pack.mkdir()
    (pack / "index.json").write_text("{")
    with pytest.raises(SystemExit, match="index.json is damaged"):
        gpu_checks.receive()
    gpu_checks.KEEP.mkdir(exist_ok=True)
    (gpu_checks.KEEP / "index.json").write_text("{")  # as an earlier version kept it
    come(machine, list(parts)[:3])
    assert gpu_checks.programs_there()


def test_who_ends_a_run_ends_its_checks(machine, tmp_path):
    come(machine, list(machine[1])[:3])
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(Path(gpu_checks.__file__).parent)!r})
import gpu_checks
for name, path in (("PACK", "pack"), ("KEEP", "keep"), ("SUITE", "keep/suite"), ("LOGS", "logs")):
    setattr(gpu_checks, name, pathlib.Path({str(tmp_path)!r}) / path)
gpu_checks.CHECKS[:] = [gpu_checks.Check("slow", "kernels", "one", 1, lambda c, g: [["sh", "-c", "echo $$ >{tmp_path}/pid; sleep 300"]])]
sys.argv = ["gpu_checks.py", "run"]
gpu_checks.main()
"""
    for number in (signal.SIGTERM, signal.SIGINT):
        (tmp_path / "pid").unlink(missing_ok=True)
        run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), 20, "the check runs")
        run.send_signal(number)
        assert run.wait(20) == 128 + number
        check_of_it = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")  # empty of one that has ended and that nobody waited for
        wait_for(lambda: not check_of_it.exists() or not check_of_it.read_bytes(), 10, "its check has ended")


def test_pack_takes_no_arguments():
    done = subprocess.run([Path(gpu_checks.__file__).parent / "gpu-check", "pack", "--help"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "usage: scripts/gpu-check pack |" in done.stderr


def test_what_passes_fails_and_does_not_run(machine, capsys):
    come(machine, list(machine[1])[:3])
    check("good")
    check("bad", command=("false",))
    check("slow", command=("sleep", "60"), limit=1)
    check("skips", command=("echo", "[  SKIPPED ] 3 tests, listed below:"))
    check("needs", model=True)
    assert gpu_checks.run(["kernels"]) == 1
    out = capsys.readouterr().out
    table = {line.split()[0]: line for line in out.splitlines()[-6:-1]}
    assert "passed" in table["good"] and "[ PASSED ] 2 tests." in table["good"]
    assert "FAILED (1)" in table["bad"] and "TIMED OUT after 1 s" in table["slow"] and "not run" in table["needs"]
    assert "FAILED" in table["skips"], "without a GPU that works tests skip: that is no success"
    assert out.splitlines()[-1].startswith("5 checks on 2 GPUs in ") and out.endswith(": 1 passed, 3 failed, 1 not run\n")
    log = (gpu_checks.LOGS / "gpu-check.log").read_text()
    assert "##### bad: FAILED (1)" in log and out.splitlines()[-1] in log
    assert gpu_checks.run(["good"]) == 0
    assert gpu_checks.run(["good", "needs"]) == 1, "what was asked for by name must run"
    with pytest.raises(SystemExit, match="no check is called other; there are: good bad slow skips needs"):
        gpu_checks.run(["other"])


def test_nothing_begins_after_the_time(machine, monkeypatch, capsys):
    come(machine, machine[1])
    monkeypatch.setattr(gpu_checks, "SECONDS", 4)
    check("long", gpus="all", command=("sleep", "60"))
    check("never", gpus="all")
    begin = time.monotonic()
    assert gpu_checks.run([]) == 1 and time.monotonic() - begin < 20
    out = capsys.readouterr().out
    assert "long           TIMED OUT after" in out and "never          not run" in out


def test_gpus_are_shared_by_the_rules(machine, monkeypatch):
    come(machine, machine[1])
    for i in range(4):
        check(f"one-{i}", "one", ("sleep", "0.2"))
        check(f"share-{i}", "share", ("sleep", "0.2"))
    for i in range(2):
        check(f"all-{i}", "all", ("sleep", "0.1"))
    spans, one = [], gpu_checks.Run.one

    def timed(self, c, gpus):
        begin = time.monotonic()
        result = one(self, c, gpus)
        spans.append((c, gpus, begin, time.monotonic()))
        return result

    monkeypatch.setattr(gpu_checks.Run, "one", timed)
    assert gpu_checks.run([]) == 0 and len(spans) == 10
    assert {g for c, gpus, _, _ in spans if c.gpus == "one" for g in gpus} == {"0", "1"}
    for c, gpus, begin, end in spans:
        beside = [d for d, others, b, e in spans if d is not c and set(others) & set(gpus) and b < end - 0.01 and e > begin + 0.01]
        assert len(gpus) == (2 if c.gpus == "all" else 1)
        assert not beside if c.gpus != "share" else all(d.gpus == "share" for d in beside), (c.name, [d.name for d in beside])
        held = [sum(d.gpus == "share" and gpus[0] in others and b <= begin < e - 0.01 for d, others, b, e in spans)]
        assert max(held) <= SLOTS
