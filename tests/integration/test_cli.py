"""The command line against a running server: launch, list, status, chat, generate, terminate, exit codes, Ctrl-C, and the chat
on a terminal of its own (pty)."""

import contextlib
import http.server
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time

import pytest
from harness import BINARY, MODEL, PATIENCE, Server, wait_for

UID = "m"
QUESTION = "What is the capital of France? Answer with one word."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A 1P1D deployment that the command line itself has launched, with the reference's spelling of every option."""
    home = tmp_path_factory.mktemp("home")
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as s:
        s.home = home
        worker = s.http.get("/v1/workers").json()[0]["work-ip"]
        replicas = home / "replicas.json"
        replicas.write_text(json.dumps([{"role": role, "devices": [{"worker_ip": worker, "n_gpu": 0}]} for role in ("prefill", "decode")]))
        s.launched = cli(s, "launch", "-n", "smollm2-instruct", "-u", UID, "-en", "vLLM", "-mp", MODEL, "-s", "0_135", "-f", "ggufv2",
                         "--replica_config", f"@{replicas}", "--max-model-len", "2048", "--kv_cache_bytes", str(256 << 20),
                         "--vllm_transfer_backend_type", "nixl", "--made-up", "7")
        yield s


def environment(server):
    return {**os.environ, "BATON_ENDPOINT": server.url, "HOME": str(server.home), "XDG_CONFIG_HOME": str(server.home / "config"),
            "XDG_STATE_HOME": str(server.home / "state"), "TERM": "xterm"}


def cli(server, *args, expect=0, text=None, **keys):
    r = subprocess.run([BINARY, *args], input=text, stdin=None if text is not None else subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=120 * PATIENCE, env=environment(server), **keys)
    assert r.returncode == expect, f"{args}: {r.returncode}\n{r.stdout}\n{r.stderr}"
    return r


def test_a_launch_with_roles_waits_and_prints_the_uid(server):
    assert server.launched.stdout == f"Model uid: {UID}\n"
    assert f"{UID}: " in server.launched.stderr  # the stages
    assert "made-up" in server.launched.stderr  # what means nothing here is said
    replicas = server.replicas(UID)
    assert [(r["role"], r["status"]) for r in replicas] == [("prefill", "READY"), ("decode", "READY")]
    describe = server.http.get(f"/v1/models/{UID}").json()
    assert describe["context_length"] == 2048 and describe["model_engine"] == "vLLM"


def test_tables_and_json(server):
    rows = cli(server, "list").stdout.splitlines()
    assert rows[0].split()[:3] == ["UID", "TYPE", "NAME"] and rows[1].split()[:3] == [UID, "LLM", "smollm2-instruct"]
    assert rows[0].index("TYPE") == rows[1].index("LLM")
    assert json.loads(cli(server, "list", "--json").stdout) == server.http.get("/v1/models").json()
    worker = server.http.get("/v1/workers").json()[0]["work-ip"]
    assert worker in cli(server, "workers").stdout
    assert json.loads(cli(server, "workers", "--json").stdout)[0]["work-ip"] == worker
    status = cli(server, "status").stdout
    assert server.url in status and worker in status
    assert re.search(rf"^{UID} +{UID}-0 +prefill +READY +{worker} +cpu", status, re.M), status
    assert json.loads(cli(server, "status", "--json").stdout)["instances"][0]["model_uid"] == UID


def test_one_question_and_one_text(server):
    question = ("chat", "--model-uid", UID, "--temperature", "0", "--max_tokens", "12", QUESTION)
    streamed = cli(server, *question).stdout
    assert "Paris" in streamed and streamed.endswith("\n")
    assert cli(server, *question, "--stream", "False").stdout == streamed
    whole = json.loads(cli(server, *question, "--json").stdout)
    assert whole["choices"][0]["message"]["content"] == streamed.rstrip("\n") and whole["usage"]["completion_tokens"] <= 12
    # All of standard input is one message, and the only model needs no name.
    piped = cli(server, "chat", "--temperature", "0", "--max-tokens", "12", "--stats", text=QUESTION.replace("of", "\nof") + "\n")
    assert piped.stdout.strip()
    assert re.search(r"\d+ prompt tokens.*, first after \d+ ms", piped.stderr), piped.stderr
    text = cli(server, "generate", "-u", UID, "--temperature", "0", "--max_tokens", "4", "The capital of France is").stdout
    assert "Paris" in text


def test_what_comes_through_a_pipe_follows_the_prompt(server, tmp_path):
    ask = ("chat", "--temperature", "0", "--max-tokens", "1", "--json", "Repeat:")
    count = lambda r: json.loads(r.stdout)["usage"]["prompt_tokens"]  # noqa: E731
    alone = count(cli(server, *ask))
    whole = count(cli(server, *ask[:-1], "Repeat:\n\none two three\n"))
    assert whole > alone
    assert count(cli(server, *ask, text="one two three\n")) == whole
    (tmp_path / "file").write_text("one two three\n")
    with open(tmp_path / "file") as file:
        r = subprocess.run([BINARY, *ask], stdin=file, capture_output=True, text=True, timeout=60 * PATIENCE, env=environment(server))
    assert count(r) == whole
    assert count(cli(server, *ask, text="")) == alone
    assert "standard input" in cli(server, "chat", text=" \n", expect=2).stderr


@pytest.mark.parametrize("args,sent", [
    (("--thinking", "hi"), True), (("hi", "--thinking"), True), (("--thinking", "off", "hi"), False), (("--thinking=false", "hi"), False), (("--thinking", "true", "hi"), True), (("hi",), None)])
def test_thinking_does_not_eat_the_question(server, args, sent):
    """Neither do other settings that are true or false."""
    with http.server.HTTPServer(("127.0.0.1", 0), ChatServer) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        cli(server, "chat", "-e", f"http://127.0.0.1:{fake.server_port}", *args)
        assert ChatServer.body["messages"] == [{"role": "user", "content": "hi"}]
        assert ChatServer.body.get("enable_thinking") is sent
        cli(server, "chat", "-e", f"http://127.0.0.1:{fake.server_port}", "--stream", "--ignore-eos", "hi")
        assert ChatServer.body["messages"] == [{"role": "user", "content": "hi"}] and ChatServer.body["ignore_eos"] is True and ChatServer.body["stream"] is True
        fake.shutdown()


class ChatServer(http.server.BaseHTTPRequestHandler):
    """Has one model, which says one word, and keeps what it was asked."""

    body = None

    def answer(self):
        length = int(self.headers.get("content-length") or 0)
        data, kind = json.dumps({"data": [{"id": "m", "model_ability": ["chat"]}]}).encode(), "application/json"
        if length:
            type(self).body = json.loads(self.rfile.read(length))
            data, kind = b'data: {"choices":[{"delta":{"content":"yes"},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n', "text/event-stream"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, *args):
        pass


def test_a_conversation_from_a_pipe(server):
    """-i: a message a line, commands too; the second question sees the first."""
    lines = "/set temperature 0\n/set max_tokens 8\nSay: red\n/set temperature 9\n/stats\n/show\n/exit\nnever\n"
    r = cli(server, "chat", "-i", text=lines)
    assert "temperature is 0" in r.stdout and "temperature must be within 0..2" in r.stdout
    assert "user: Say: red" in r.stdout and re.search(r"\d+ tokens?, first after", r.stdout)
    assert "never" not in r.stdout


@pytest.mark.parametrize("config,message", [
    ("[", "must be valid JSON"), ("{}", "must be a JSON array"), ("[]", "must be a non-empty JSON array"),
    ('[{"role": "prefill", "devices": [{"worker_ip": "a:1"}]}]', "both prefill and decode"),
    ('[{"colour": 1, "devices": [{"worker_ip": "a:1"}]}]', "Invalid replica_config")])
def test_wrong_replica_configs_end_before_anything_is_sent(server, config, message):
    """Exit code 2 also where no server is: nothing was asked."""
    r = cli(server, "launch", "-n", "x", "-en", "vLLM", "--replica-config", config, "-e", "http://127.0.0.1:1", expect=2)
    assert message in r.stderr


@pytest.mark.parametrize("args", [
    (), ("nonsense",), ("bench", "nonsense"), ("config", "nonsense"), ("launch",), ("list", "-e", "nonsense://x"), ("list", "-e", ""), ("login", "-e", "http://"),
    ("chat", ""), ("chat", "  "), ("generate", ""), ("chat",), ("generate",), ("chat", "-i", "hi"), ("chat", "-u", "", "hi"), ("terminate", "-u", ""),
    ("launch", "-n", "x", "-u", ""), ("launch", "-n", "x", "-u", " "), ("chat", "--thinking=perhaps", "hi"), ("pull",), ("pull", "no-such-name"), ("register",),
    ("worker",), ("worker", "--supervisor", "nonsense"), ("serve", "--config", "/nonexistent"), ("config", "check", "--config", "/nonexistent"), ("serve", "--port", "x"), ("launch", "-n", "x", "stray"), ("launch", "-n", "x", "--key"), ("terminate",), ("list", "--what"),
    ("launch", "-n", "x", "--replica", "two"), ("chat", "--temperature", "9", "hi"), ("register", "--file", "/nonexistent"),
    ("launch", "-n", "x", "--replica-config", '[{"devices": [{"worker_ip": "a:1"}]}]', "--worker-ip", "b:1")])
def test_usage_errors_are_exit_code_2(server, args):
    r = cli(server, *args, expect=2)
    assert r.stderr and not r.stdout


@pytest.mark.parametrize("word,meant", [("lanuch", "launch"), ("terminat", "terminate"), ("regist", "register"), ("worker-list", None), ("xyzzy", None)])
def test_an_unknown_command_is_named(server, word, meant):
    err = cli(server, word, "-n", "x", expect=2).stderr
    assert f"there is no command '{word}'" in err and "--help" in err
    assert ("did you mean" in err) == bool(meant) and (not meant or f"'{meant}'" in err), err
    assert "replica" not in err  # the command that is not for users


def test_an_unset_variable_is_no_default(server):
    """-u "" is what a script sends whose variable is empty: it must not end another model."""
    assert "--model-uid" in cli(server, "terminate", "--model-uid", "", expect=2).stderr
    assert server.http.get(f"/v1/models/{UID}").status_code == 200


def test_a_file_of_settings_with_a_key_twice(server, tmp_path):
    (tmp_path / "c.json").write_text('{"port": 1, "host": "127.0.0.1", "port": 2}')
    assert "'/port' stands there twice" in cli(server, "config", "check", "--config", str(tmp_path / "c.json"), expect=2).stderr
    (tmp_path / "c.json").write_text('{"port": 1, "host": "127.0.0.1"}')
    assert cli(server, "config", "check", "--config", str(tmp_path / "c.json")).stdout == "good\n"
    shown = json.loads(cli(server, "config", "show", "--config", str(tmp_path / "c.json")).stdout)
    assert {"port", "auth_file", "auth_failures_max", "hub_endpoint", "hub_token", "hub_cache_dir", "hub_ca_file", "hub_offline", "share_gpus"} <= set(shown)


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/", "//"])
def test_an_endpoint_may_end_as_openais_clients_are_given_it(server, end):
    assert cli(server, "list", "-e", server.url + end).stdout == cli(server, "list").stdout


def test_failures_are_exit_code_1_and_say_why(server):
    for args in (("list",), ("status",), ("chat", "hi"), ("launch", "-n", "x", "-mp", MODEL), ("terminate", "--model-uid", "x")):
        r = cli(server, *args, "-e", "http://127.0.0.1:1", expect=1)
        assert "no server answers at http://127.0.0.1:1" in r.stderr and "baton serve" in r.stderr, args
    assert "Model not found in the model list, uid: nobody" in cli(server, "terminate", "--model-uid", "nobody", expect=1).stderr
    assert "File or directory does not exist" in cli(server, "launch", "-n", "x", "-mp", "/nonexistent", expect=1).stderr
    assert "nobody" in cli(server, "chat", "--model-uid", "nobody", "hi", expect=1).stderr
    # A launch that fails after it was accepted says why, and its uid is free again.
    r = cli(server, "launch", "-n", "x", "-u", "broken", "-mp", MODEL, "--n-gpu", "none", "--fault", "no such fault", expect=1)
    assert "launch of broken failed" in r.stderr and "no such fault" in r.stderr
    assert not [m for m in server.http.get("/v1/models").json()["data"] if m["id"] == "broken"]


def test_every_command_has_help(server):
    top = cli(server, "--help").stdout
    for command in ("serve", "supervisor", "worker", "launch", "list", "terminate", "chat", "generate", "engine", "registrations", "register",
                    "unregister", "cached", "workers", "status", "stop-cluster", "login"):
        assert re.search(rf"^  {command} ", top, re.M), command
        assert len(cli(server, command, "--help").stdout.splitlines()) > 3, command


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_launch_cancels_it(server, sent):
    process = subprocess.Popen([BINARY, "launch", "-n", "slow", "-mp", MODEL, "--n-gpu", "none", "--max_model_len", "512",
                                "--fault", "fill_delay_ms=600000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(server),
                               preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL))  # who runs the tests may ignore it, as nohup does
    rows = lambda: server.http.get("/v1/models/instances", params={"model_uid": "slow"}).json()  # noqa: E731
    wait_for(lambda: [r for r in rows() if r["status"] in ("CREATING", "LOADING")], 20, "the launch has begun")
    process.send_signal(sent)
    out, err = process.communicate(timeout=30 * PATIENCE)
    assert process.returncode == 1 and not out, err
    assert "cancelled" in err
    assert not [r for r in rows() if r["status"] in ("CREATING", "LOADING", "READY")]


LONG = ("--ignore-eos", "true", "--max-tokens", "1900", "Tell a story")


def computing(server):
    return sum(r["running"] for r in server.replicas(UID))


@pytest.mark.parametrize("args", [("chat", "--json", *LONG), ("generate", "--stream", "false", *LONG)])
def test_an_interrupt_ends_a_request_without_a_stream(server, args):
    wait_for(lambda: computing(server) == 0, 20, "nothing is computed")
    process = subprocess.Popen([BINARY, *args, "-u", UID], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment(server))
    wait_for(lambda: computing(server) > 0, 20, "the answer is computed")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20 * PATIENCE)
    assert process.returncode == 1 and not out and err == "baton: stopped\n"
    wait_for(lambda: computing(server) == 0, 5, "the server stops computing")


def test_a_closed_pipe_ends_the_answer(server):
    process = subprocess.Popen([BINARY, "chat", "-u", UID, *LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment(server))
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(20 * PATIENCE) == 1
    assert process.stderr.read() == b""
    process.stderr.close()
    wait_for(lambda: computing(server) == 0, 5, "the server stops computing")


@pytest.mark.parametrize("args", [("list",), ("list", "--json"), ("--help",), ("chat", "-u", UID, "hi"), ("chat", "-u", UID, "-i")])
def test_an_output_that_takes_nothing_is_a_failure(server, args):
    with open("/dev/full", "w") as full:
        r = subprocess.run([BINARY, *args], input="hi\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE,
                           env=environment(server))
    assert r.returncode == 1
    assert r.stderr == "baton: cannot write to standard output: No space left on device\n"


class LateServer(http.server.BaseHTTPRequestHandler):
    """Answers a launch, and says that the model is running when it is to be cancelled."""

    seen = []
    body = None

    def answer(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        self.seen.append(f"{self.command} {self.path}")
        cancelled = "POST /v1/models/late/cancel" in self.seen
        status, answer = 200, {}
        if self.path.startswith("/v1/models?"):
            type(self).body = json.loads(body)
            answer = {"model_uid": "late"}
        elif self.path.startswith("/v1/models/instances"):
            answer = [{"model_uid": "late", "status": "READY" if cancelled else "LOADING"}]
        elif self.path.endswith("/cancel"):
            status, answer = 400, {"detail": "Model late is running, not launching"}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *args):
        pass


def test_an_interrupt_too_late_to_cancel_terminates_the_model(server):
    """A launch sends no field that nobody gave."""
    LateServer.seen.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), LateServer) as late:
        threading.Thread(target=late.serve_forever, daemon=True).start()
        process = subprocess.Popen([BINARY, "launch", "-n", "x", "-u", "late", "-e", f"http://127.0.0.1:{late.server_port}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(server))
        wait_for(lambda: any("instances" in line for line in LateServer.seen), 20, "the launch is watched")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20 * PATIENCE)
        late.shutdown()
    assert process.returncode == 1 and not out, err
    assert "the model is running already" in err and "not launching" not in err and "cancelled" in err
    assert LateServer.seen[-1] == "DELETE /v1/models/late"
    assert LateServer.body == {"model_name": "x", "model_uid": "late", "model_type": "LLM", "model_engine": "baton", "n_worker": 1, "replica": 1}


@pytest.mark.parametrize("flag,field,value", [
    ("--enable-thinking", "enable_thinking", True), ("--disable-thinking", "enable_thinking", False),
    ("--enable-virtual-env", "enable_virtual_env", True), ("--disable-virtual-env", "enable_virtual_env", False)])
def test_a_launch_sends_the_choice_that_was_given(server, flag, field, value):
    with http.server.HTTPServer(("127.0.0.1", 0), LateServer) as late:
        threading.Thread(target=late.serve_forever, daemon=True).start()
        cli(server, "launch", "-n", "x", "--no-wait", flag, "-e", f"http://127.0.0.1:{late.server_port}")
        late.shutdown()
    assert LateServer.body[field] is value and not {"enable_thinking", "enable_virtual_env"} - {field} & set(LateServer.body)


class Terminal:
    """A process on a pseudo-terminal: what it wrote, and what is typed."""

    def __init__(self, server, *args, size=(30, 100)):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update(environment(server))
            os.environ.pop("COLUMNS", None)
            os.execv(BINARY, [BINARY, *args])
        self.pid = pid
        termios.tcsetwinsize(self.fd, size)
        self.output = ""
        self.seen = 0

    def read(self, timeout=0.2):
        """Takes what comes until nothing does for a moment; of an answer that streams, a fifth of a second of it."""
        end = time.monotonic() + 0.2
        while select.select([self.fd], [], [], timeout)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # its other end is gone
                return
            if not data:
                return
            self.output += data.decode(errors="replace")
            if time.monotonic() >= end:
                return
            timeout = 0.02

    def expect(self, pattern, timeout=30):
        """Waits for a pattern in what has come since the last one; escape sequences do not count."""
        end = time.monotonic() + timeout * PATIENCE
        while True:
            plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output).replace("\r", "")
            found = re.search(pattern, plain[self.seen:], re.S | re.M)
            if found:
                self.seen += found.end()
                return found
            assert time.monotonic() < end, f"no {pattern!r} in {plain[self.seen:]!r}"
            self.read()

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, timeout=20):
        end = time.monotonic() + timeout * PATIENCE
        while True:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, "it does not end"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.fd)
        if kind:
            print(self.output)


def test_chat_on_a_terminal(server):
    with Terminal(server, "chat", "--temperature", "0", "--max-tokens", "16") as t:
        before = termios.tcgetattr(t.fd)
        t.expect(r"/help lists the commands.*>>> ")
        t.type(QUESTION.replace("France", "Frnce") + "\x1b[1;5D" * 5 + "\x1b[C\x1b[C" + "a\r")  # edited before it is sent
        t.expect(r"France\? Answer with one word\.\n.*Paris.*>>> ")
        t.type("/stats\r")
        t.expect(r"\d+ prompt tokens.*\d+ tokens?, first after \d+ ms.*>>> ")
        t.type("\x1b[200~one\rtwo\rthree\x1b[201~")  # a paste of several lines waits for Enter
        t.expect(r"\.\.\. three$")
        t.type("\r")
        t.expect(r"\n.+>>> $")
        t.type("/show\r")
        shown = t.expect(r"user: What is the capital of France\? Answer with one word\.\nassistant: .*Paris.*user: one\ntwo\nthree\nassistant: .*>>> $")
        assert shown
        t.type("/set max_tokens 2000\r/set ignore_eos on\r")
        t.expect(r"ignore_eos is on.*>>> $")
        t.type("Tell me a long story.\r")
        t.expect(r"story\.\n\S+ \S+ ")  # it has begun
        t.type("\x03")  # Ctrl-C stops the answer, not the program
        t.expect(r"\(stopped\).*>>> $", timeout=10)
        t.type("abc\x03")  # and at the prompt the line
        t.expect(r"leaves\.\n.*>>> $")
        t.type("/reset\r")
        t.expect(r"forgotten.*>>> $")
        t.type("\x1b[A\x1b[A\r")  # up twice: the long story again
        t.expect(r"Tell me a long story\.\n\S+ ")
        t.type("\x03")
        t.expect(r">>> $", timeout=10)
        t.type("\x04")
        assert t.wait() == 0
        # The line discipline is what it was.
        with contextlib.suppress(termios.error):
            assert termios.tcgetattr(t.fd) == before
    server.settled("baton_requests_running", 0) if "baton_requests_running" in server.metrics() else None
    # What was entered is there in the next run.
    with Terminal(server, "chat") as t:
        t.expect(r">>> $")
        t.type("\x1b[A")
        t.expect(r">>> Tell me a long story\.$")
        t.type("\x15/exit\r")
        assert t.wait() == 0
    assert (server.home / "state/baton/chat_history").stat().st_mode & 0o777 == 0o600


def test_generate_and_launch_on_a_terminal(server):
    with Terminal(server, "generate", "--temperature", "0", "--max-tokens", "4") as t:
        t.expect(r">>> $")
        t.type("The capital of France is\r")
        t.expect(r"Paris.*>>> $")
        t.type("/exit\r")
        assert t.wait() == 0
    with Terminal(server, "launch", "-n", "second", "-mp", MODEL, "--n-gpu", "none", "--max_model_len", "512", size=(24, 60)) as t:
        t.expect(r"second  \w+ .*\d+%")  # a bar
        t.expect(r"Model uid: second\n")
        assert t.wait() == 0
    cli(server, "terminate", "--model-uid", "second")
    assert [m["id"] for m in server.http.get("/v1/models").json()["data"]] == [UID]


def test_models_by_name(server, tmp_path):
    rows = cli(server, "registrations").stdout
    assert re.search(r"^qwen2\.5-instruct +0\.5, 1\.5, .*chat.* yes$", rows, re.M), rows
    assert json.loads(cli(server, "registrations", "--json").stdout)[0]["model_specs"]
    rows = cli(server, "engine", "-n", "qwen2.5-instruct", "-en", "vllm", "-s", "0.5", "-f", "pytorch").stdout
    assert re.search(r"^qwen2\.5-instruct +vLLM +pytorch +0_5 ", rows, re.M) and " 7 " not in rows, rows
    assert "no engine serves" in cli(server, "engine", "-n", "qwen2.5-instruct", "-f", "none-such", expect=1).stderr
    cli(server, "cached")
    family = {"version": 2, "context_length": 2048, "model_name": "my-own", "model_lang": ["en"], "model_ability": ["chat"],
              "model_family": "smollm2-instruct", "model_specs": [
                  {"model_format": "ggufv2", "model_size_in_billions": "0_135", "quantizations": ["Q4_1"], "model_id": "x/y",
                   "model_file_name_template": os.path.basename(MODEL), "model_uri": os.path.dirname(MODEL)}]}
    (tmp_path / "model.json").write_text(json.dumps(family))
    cli(server, "register", "--file", str(tmp_path / "model.json"))
    assert re.search(r"^my-own .* no$", cli(server, "registrations").stdout, re.M)
    cli(server, "launch", "-n", "my-own", "-s", "0_135", "-en", "vLLM", "--n-gpu", "none", "--max_model_len", "512")
    cli(server, "terminate", "--model-uid", "my-own")
    cli(server, "unregister", "-n", "my-own")
    assert "my-own" not in cli(server, "registrations").stdout
    # Without network a pull says what it lacks.
    r = subprocess.run([BINARY, "pull", "qwen3", "-s", "0_6"], capture_output=True, text=True,
                       env={**environment(server), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")})
    assert r.returncode == 1 and not r.stdout and "Qwen/Qwen3-0.6B" in r.stderr, r.stderr
    assert "no-such-name" in cli(server, "pull", "no-such-name", expect=2).stderr


def test_login_keeps_a_token_and_asks_without_echo(server, tmp_path):
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({
        "auth_config": {"algorithm": "HS256", "secret_key": "0123456789abcdef0123456789abcdef", "token_expire_in_minutes": 30},
        "user_config": [{"username": "ann", "password": "pa ss", "permissions": ["admin"], "api_keys": ["sk-72tkvudyGLPMi"]}]}))
    assert "asks for no login" in cli(server, "login").stderr
    with Server(extra=("--auth_config", str(auth))) as other:
        other.home = tmp_path
        assert "baton login" in cli(other, "list", expect=1).stderr
        cli(other, "list", "--api-key", "sk-72tkvudyGLPMi")
        assert "Incorrect username or password" in cli(other, "login", "--username", "ann", "--password", "no", expect=1).stderr
        with Terminal(other, "login") as t:
            t.expect(r"Username: $")
            t.type("ann\r")
            t.expect(r"Password: $")
            t.type("pa ss\r")
            t.expect(r"logged in to .* as ann")
            assert t.wait() == 0
            assert "pa ss" not in t.output
        tokens = list((tmp_path / "config/baton/tokens").iterdir())
        assert len(tokens) == 1 and tokens[0].stat().st_mode & 0o777 == 0o600
        cli(other, "list")
        # A token that is no longer good is renewed once.
        kept = json.loads(tokens[0].read_text())
        tokens[0].write_text(json.dumps({**kept, "access_token": "stale"}))
        cli(other, "workers")
        assert json.loads(tokens[0].read_text())["access_token"] not in ("stale", "")
        cli(other, "logout")
        cli(other, "list", expect=1)
        # A line of standard input is as good as a terminal.
        cli(other, "login", "--username", "ann", text="pa ss\n")
        cli(other, "list")


def test_stop_cluster_asks_first(server):
    with Server() as other:
        other.home = server.home
        r = cli(other, "stop-cluster", text="n\n", expect=1)
        assert "Continue?" in r.stderr and other.process.poll() is None
        cli(other, "stop-cluster", text="", expect=1)
        assert other.process.poll() is None
        assert "yes" in cli(other, "stop-cluster", "--check").stdout
        assert other.process.wait(20 * PATIENCE) == 0
