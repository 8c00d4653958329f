"""What the comparisons of templates and tokenizers share: baton-text-tool, and files that Python packages carry."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import harness
import pytest

TOOL = os.environ.get("BATON_TEXT_TOOL") or str(Path(harness.BINARY or "").resolve().parent / "tests/baton-text-tool")
SHARED = Path(__file__).resolve().parents[3] / "shared/data"
LLAMA = "llama-cpp-python==0.3.36"  # an sdist, for its chat templates and vocabularies
XINFERENCE = "xinference==4.1.0"
# Multiplies how much is compared: 1 keeps every file under a minute.
TIMES = float(os.environ.get("BATON_TEXT_TIMES", "1"))


class Tool:
    """One process of baton-text-tool; `ask` sends a request and returns its answer."""

    def __init__(self, **popen):
        if not os.path.exists(TOOL):
            pytest.skip(f"{TOOL} is not built")
        self.process = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **popen)

    def ask(self, op, **request):
        self.process.stdin.write(json.dumps({"op": op, **request}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"baton-text-tool ended with {self.process.wait()} at {op}"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def cache_folder():
    """As `baton` itself and scripts/lib.sh choose it."""
    for name, tail in (("BATON_CACHE_DIR", ""), ("XDG_CACHE_HOME", "baton")):
        if os.environ.get(name):
            return Path(os.environ[name]) / tail
    return Path("/var/cache/baton") if os.geteuid() == 0 else Path.home() / ".cache/baton"


def package(requirement, source, wanted):
    """A folder with those files of a package of PyPI for which `wanted(name)` holds; skips where it cannot be had."""
    folder = cache_folder() / "text" / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        kind = ["--no-binary", requirement.split("==")[0]] if source else ["--only-binary", ":all:"]
        got = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *kind,
                              "--dest", work, requirement], capture_output=True, text=True, timeout=900)
        archives = [p for p in Path(work).iterdir() if p.suffix in (".whl", ".gz")]
        if got.returncode or not archives:
            pytest.skip(f"cannot download {requirement} with pip: {got.stderr.strip()[-200:]}")
        made = Path(work) / "files"
        made.mkdir()
        if archives[0].suffix == ".whl":
            with zipfile.ZipFile(archives[0]) as wheel:
                for name in filter(wanted, wheel.namelist()):
                    (made / Path(name).name).write_bytes(wheel.read(name))
        else:
            with tarfile.open(archives[0]) as sdist:
                for member in sdist:
                    if member.isfile() and wanted(member.name):
                        with sdist.extractfile(member) as content, open(made / Path(member.name).name, "wb") as target:
                            shutil.copyfileobj(content, target)
        made.rename(folder)
    return folder


def llama_files():
    """`*.jinja` and `ggml-vocab-*` of llama.cpp, flat."""
    return package(LLAMA, True, lambda n: "/vendor/llama.cpp/models/" in n and (n.endswith(".jinja") or "/ggml-vocab-" in n))


def xinference_templates():
    """{name: template}; the same text under several names is taken once."""
    folder = package(XINFERENCE, False, lambda n: n.startswith("xinference/model/llm/models/") and n.endswith(".json"))
    found = {}
    for path in sorted(folder.iterdir()):
        family = json.loads(path.read_text())
        for entry in family if isinstance(family, list) else [family]:
            source = entry.get("chat_template")
            if source:
                found.setdefault(hashlib.sha256(source.encode()).digest(), (f"xinference/{path.stem}", source))
    return dict(found.values())


def llama_templates():
    return {f"llama.cpp/{p.stem}": p.read_text() for p in sorted(llama_files().glob("*.jinja"))}
