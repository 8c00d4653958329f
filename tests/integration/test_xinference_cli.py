"""The unmodified command line of Xinference (PyPI `xinference`, installed without its engines) against baton: what it sends is
understood, and it finds in the answers what it parses."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import MODEL, PATIENCE, Server

UID = "m"
REQUIREMENTS = Path(__file__).with_name("xinference_cli_requirements.txt")


@pytest.fixture(scope="module")
def xinference():
    """The program, in an environment of its own beside that of the tests, which is kept."""
    text = REQUIREMENTS.read_text()
    bare, rest = (re.findall(r"^[a-z].*$", part, re.M) for part in text.split("# ---"))
    folder = Path(sys.prefix).parent / f"venv-xinference-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    program = folder / "bin/xinference"
    if not (folder / "complete").exists():
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        for step in ([sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, "--no-deps", *bare], [*pip, *rest]):
            r = subprocess.run(step, capture_output=True, text=True, timeout=600)
            if r.returncode != 0:
                pytest.skip(f"xinference's command line cannot be installed: {r.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return program


@pytest.fixture(scope="module")
def server():
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as s:
        s.worker = s.http.get("/v1/workers").json()[0]["work-ip"]
        yield s


# Runs commands in one process, since each start imports for seconds: a line of JSON in, a line of JSON out.
DRIVER = """
import contextlib, io, json, os, sys, traceback
from xinference.deploy.cmdline import cli

def invoke(args, text):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.stdin = io.StringIO(text)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(args=args, prog_name="xinference")
        except SystemExit as e:
            code = e.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}

asked, answers = sys.stdin, sys.stdout
for line in asked:
    ask = json.loads(line)
    os.environ["XINFERENCE_ENDPOINT"] = ask["endpoint"]
    print(json.dumps(invoke(ask["args"], ask["text"])), file=answers, flush=True)
"""


@pytest.fixture(scope="module")
def driver(xinference, tmp_path_factory):
    env = {**os.environ, "XINFERENCE_HOME": str(tmp_path_factory.mktemp("xinference-home")), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen([str(xinference.with_name("python")), "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as p:
        yield p
        p.stdin.close()


class Result:
    def __init__(self, code, out, err):
        self.code, self.stdout, self.stderr = code, out, err


def run(driver, server, *args, expect=0, text=""):
    driver.stdin.write(json.dumps({"args": args, "text": text, "endpoint": server.url}) + "\n")
    driver.stdin.flush()
    r = Result(**json.loads(driver.stdout.readline()))
    assert r.code == expect, f"{args}: {r.code}\n{r.stdout}\n{r.stderr[-3000:]}"
    return r


def replicas(server, *roles):
    return json.dumps([{"role": role, "devices": [{"worker_ip": server.worker, "n_gpu": 0}]} for role in roles])


LAUNCH = ("launch", "-n", "smollm2-instruct", "-en", "vLLM", "-s", "0_135", "-f", "ggufv2", "-q", "Q4_1", "-mp", MODEL,
          "--max_model_len", "2048", "--kv_cache_bytes", str(256 << 20))


@pytest.fixture(scope="module")
def launched(xinference, server, tmp_path_factory):
    """A deployment with roles, launched by Xinference's program as it stands."""
    env = {**os.environ, "XINFERENCE_HOME": str(tmp_path_factory.mktemp("xinference-home")), "XINFERENCE_ENDPOINT": server.url}
    r = subprocess.run([str(xinference), *LAUNCH, "-u", UID, "--replica-config", replicas(server, "prefill", "decode"),
                        "--vllm_transfer_backend_type", "xavier"], capture_output=True, text=True, timeout=180 * PATIENCE, env=env)
    assert r.returncode == 0, r.stderr[-3000:]
    return r


def test_launch_with_roles_waits_until_all_replicas_serve(launched, server):
    assert f"Model uid: {UID}" in launched.stderr and "100.0%" in launched.stderr
    rows = server.replicas(UID)
    assert [(r["role"], r["status"]) for r in rows] == [("prefill", "READY"), ("decode", "READY")]
    assert server.http.get(f"/v1/models/{UID}").json()["model_engine"] == "vLLM"


def test_list_shows_it(driver, server, launched):
    r = run(driver, server, "list")
    assert re.search(rf"^{UID} +LLM +smollm2-instruct +ggufv2 +0[._]135 +Q4_1", r.stderr, re.M), r.stderr


def test_chat_and_generate(driver, server, launched):
    question = "What is the capital of France?\nAnd of Italy?\n\n"
    for stream in ("True", "False"):
        r = run(driver, server, "chat", "--model-uid", UID, "--max_tokens", "16", "--stream", stream, text=question)
        assert len(re.findall(r"Assistant: \S", r.stdout)) == 2, r.stdout
        r = run(driver, server, "generate", "--model-uid", UID, "--max_tokens", "4", "--stream", stream, text="The capital of France is\n\n")
        assert re.search(r"The capital of France is\s*\S+", r.stdout), r.stdout


def test_hybrid_replicas_launch_and_terminate(driver, server):
    r = run(driver, server, *LAUNCH, "-u", "two", "--replica", "2", "--n-gpu", "none")
    assert "Model uid: two" in r.stderr
    assert [row["role"] for row in server.replicas("two")] == ["hybrid", "hybrid"]
    run(driver, server, "terminate", "--model-uid", "two")
    assert "two" not in [m["id"] for m in server.http.get("/v1/models").json()["data"]]
    # A second time there is nothing to end, and it says so.
    r = run(driver, server, "terminate", "--model-uid", "two", expect=1)
    assert "Model not found in the model list, uid: two" in r.stderr


def test_wrong_launches_end_with_the_reason(driver, server):
    r = run(driver, server, *LAUNCH, "--replica-config", replicas(server, "prefill"), expect=2)
    assert "both prefill and decode" in r.stderr
    r = run(driver, server, "launch", "-n", "x", "-en", "vLLM", "-mp", "/nonexistent", "--n-gpu", "none", expect=1)
    assert "File or directory does not exist" in r.stderr
    r = run(driver, server, "launch", "-n", "no-such-model", "-en", "vLLM", "-s", "7", expect=1)
    assert "no-such-model" in r.stderr
    # Accepted, and failed while loading: the message of the replica.
    r = run(driver, server, *LAUNCH, "-u", "broken", "--n-gpu", "none", "--fault", "no such fault", expect=1)
    assert "Failed to launch model broken" in r.stderr and "no such fault" in r.stderr


def test_registrations_and_engines(driver, server, tmp_path):
    r = run(driver, server, "registrations")
    assert re.search(r"^LLM +qwen2\.5-instruct +\[.*'en'.*\] +\[.*'chat'.*\] +True", r.stderr, re.M), r.stderr[-2000:]
    r = run(driver, server, "engine", "-n", "qwen2.5-instruct", "-en", "vllm")
    assert re.search(r"^qwen2\.5-instruct +vLLM +\w+ +\S+ +\S+", r.stderr, re.M), r.stderr
    assert "does not support" in run(driver, server, "engine", "-n", "qwen2.5-instruct", "-f", "no-format").stderr
    assert "qwen2.5-instruct" in run(driver, server, "vllm-models").stdout
    cached = run(driver, server, "cached").stdout
    assert "cached_model" in cached or "There are no cache files." in cached
    family = {"version": 2, "context_length": 4096, "model_name": "my-own", "model_lang": ["en"], "model_ability": ["chat"],
              "model_family": "smollm2-instruct", "model_specs": [
                  {"model_format": "ggufv2", "model_size_in_billions": "0_135", "quantizations": ["Q4_1"], "model_id": "x/y",
                   "model_file_name_template": Path(MODEL).name, "model_uri": str(Path(MODEL).parent)}]}
    (tmp_path / "model.json").write_text(json.dumps(family))
    run(driver, server, "register", "-f", str(tmp_path / "model.json"))
    assert re.search(r"^LLM +my-own .* False", run(driver, server, "registrations").stderr, re.M)
    run(driver, server, "unregister", "-n", "my-own")
    assert "my-own" not in run(driver, server, "registrations").stderr


def test_login_is_needed_where_the_server_asks_for_one(driver, tmp_path):
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({
        "auth_config": {"algorithm": "HS256", "secret_key": "0123456789abcdef0123456789abcdef", "token_expire_in_minutes": 30},
        "user_config": [{"username": "ann", "password": "pa ss", "permissions": ["admin"], "api_keys": ["sk-72tkvudyGLPMi"]}]}))
    with Server(extra=("--auth-file", str(auth))) as server:
        r = run(driver, server, "list", expect=1)
        assert "please login first" in r.stderr
        r = run(driver, server, "login", "--username", "ann", "--password", "wrong", expect=1)
        assert "Incorrect username or password" in r.stderr
        run(driver, server, "login", "--username", "ann", "--password", "pa ss")
        run(driver, server, "list")
        run(driver, server, "list", "-ak", "sk-72tkvudyGLPMi")


def test_stop_cluster_ends_the_server(driver, tmp_path):
    with Server() as server:
        r = run(driver, server, "stop-cluster", "-e", server.url, text="n\n", expect=1)
        assert "Supervisor information" in r.stdout and server.process.poll() is None
        assert "Cluster stopped: True" in run(driver, server, "stop-cluster", "-e", server.url, "--check").stdout
        assert server.process.wait(20 * PATIENCE) == 0
