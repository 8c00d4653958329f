"""The README's step by step, run as written: its blocks of `sh` and `python` one after the other, in a network namespace of their
own, so that the default port is free. The first block is the server's terminal."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import BINARY, MODEL, PATIENCE

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ["unshare", "--net", "--user", "--map-root-user"]


def steps():
    part = (ROOT / "README.md").read_text().split("## Step by step")[1].split("\n## ")[0]
    return [(language, text) for language, text in re.findall(r"```(\w+)\n(.*?)```", part, re.S)]


def test_every_command_of_the_steps_runs(tmp_path):
    if subprocess.run([*NAMESPACE, "ip", "link", "set", "lo", "up"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace may be made here")
    found = steps()
    assert [language for language, _ in found].count("python") == 1 and len(found) >= 7 and found[0][1].strip() == "baton serve"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "baton").symlink_to(BINARY)
    # The model that the tests have stands where scripts/fetch-model looks.
    models = tmp_path / "cache/models"
    models.mkdir(parents=True)
    os.link(MODEL, models / "SmolLM2-135M-Instruct.Q4_1.gguf") if os.stat(MODEL).st_dev == os.stat(models).st_dev else \
        (models / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(Path(MODEL).read_bytes())
    script = ["set -euo pipefail", "ip link set lo up", f"{found[0][1].strip()} >{tmp_path}/server.log 2>&1 &", "server=$!", "trap 'kill $server 2>/dev/null || true' EXIT",
              # What a reader sees before he types on: the server's address and its worker.
              "for i in $(seq 300); do grep -q worker.registered " + f"{tmp_path}/server.log && break; sleep 0.1; done"]
    for at, (language, text) in enumerate(found[1:]):
        script.append(f"echo '--- {at}'")
        if language == "python":
            (tmp_path / "step.py").write_text(text)
            script.append(f"'{sys.executable}' {tmp_path}/step.py")
        else:
            script.append(text)
    script += ["wait $server", "echo '--- end'"]
    (tmp_path / "steps.sh").write_text("\n".join(script))
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "BATON_CACHE_DIR": str(tmp_path / "cache"), "BATON_STATE_DIR": str(tmp_path / "state"),
           "HOME": str(tmp_path), "COLUMNS": "160"}
    with open(tmp_path / "out", "wb") as out:
        run = subprocess.Popen([*NAMESPACE, "bash", str(tmp_path / "steps.sh")], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                               start_new_session=True)
        try:
            status = run.wait(240 * PATIENCE)
        except subprocess.TimeoutExpired:
            status = "not in time"
        finally:
            try:
                os.killpg(run.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            run.wait()
    said = (tmp_path / "out").read_text(errors="replace")
    assert status == 0, said[-4000:] + (tmp_path / "server.log").read_text(errors="replace")[-2000:]
    answers = said.split("--- ")
    assert answers[-1].strip() == "end" and len(answers) == len(found) + 1
    # What each step is to show.
    assert "Paris" in answers[1]
    assert "data: [DONE]" in answers[2] and "Paris" in answers[3]
    assert "smollm2" in answers[4] and re.search(r'baton_requests_total\{[^}]*outcome="ok"[^}]*\} 3', answers[4])
    assert "Model uid: placed" in answers[5]


def test_what_the_readme_names_is_there():
    """Scripts, documents and commands that the README and the documents speak of."""
    texts = {p: p.read_text() for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
    missing = []
    for path, text in texts.items():
        for name in set(re.findall(r"(?<![\w/.])((?:scripts|config|docs|src|include|tests)/[\w./-]*\w)", text)):
            if not (ROOT / name).exists() and not (path.parent / name).exists() and not list(ROOT.glob(name + ".*")):
                missing.append(f"{path.name}: {name}")
        for link in set(re.findall(r"\]\(([^)#:]+)\)", text)):
            if not (path.parent / link).exists():
                missing.append(f"{path.name}: link {link}")
    for path, text in texts.items():
        blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.S))
        for command in set(re.findall(r"`baton ([a-z][a-z-]+)", text)) | set(re.findall(r"^(?:sudo )?baton ([a-z][a-z-]+)", blocks, re.M)):
            if subprocess.run([BINARY, command, "--help"], capture_output=True).returncode != 0:
                missing.append(f"{path.name}: baton {command}")
    assert not missing, "\n".join(sorted(missing))
