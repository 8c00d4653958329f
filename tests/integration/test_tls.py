"""HTTPS: real clients against 1P1D, what is no TLS, many and half-open connections, a new certificate by SIGHUP, the end of the server."""

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest
from harness import BINARY, MODEL, PATIENCE, UID, Server, wait_for
from hub_stand_in import make_certificates

QUESTION = [{"role": "user", "content": "Count from one to ten."}]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def https(certificates):
    """A 1P1D deployment that speaks HTTPS."""
    with Server(tls=certificates) as server:
        server.launch("1p1d")
        server.ca = str(certificates["ca"])
        yield server


def context(server):
    return ssl.create_default_context(cafile=server.ca)


def raw(server, timeout=10):
    return socket.create_connection(("127.0.0.1", server.port), timeout * PATIENCE)


def certificate_seen(server):
    with ssl._create_unverified_context().wrap_socket(raw(server)) as s:
        return hashlib.sha256(s.getpeercert(binary_form=True)).hexdigest()


def fingerprint(certificates):
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates["cert"].read_text())).hexdigest()


def expiry(certificates):
    end = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", str(certificates["cert"])], check=True, capture_output=True, text=True).stdout
    return ssl.cert_time_to_seconds(end.strip().removeprefix("notAfter="))


# ---- clients ------------------------------------------------------------------------------------------------------------


def test_the_openai_sdk(https):
    with openai.OpenAI(base_url=https.url + "/v1", api_key="none", http_client=httpx.Client(verify=context(https))) as client:
        keys = dict(model=UID, messages=QUESTION, temperature=0, max_tokens=40, extra_body={"ignore_eos": True})
        whole = client.chat.completions.create(**keys)
        chunks = list(client.chat.completions.create(**keys, stream=True, stream_options={"include_usage": True}))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == 40
    with openai.OpenAI(base_url=https.url + "/v1", api_key="none", max_retries=0) as stranger, pytest.raises(openai.APIConnectionError):
        stranger.models.list()


def test_curl(https):
    def curl(*args, expect=0):
        r = subprocess.run(["curl", "-sS", *args], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert r.returncode == expect, r.stderr
        return r.stdout

    models = json.loads(curl("--cacert", https.ca, https.url + "/v1/models"))
    assert models["data"][0]["id"] == UID
    for version in ("--http1.1", "--http2"):  # who offers more gets what there is
        text = curl("--cacert", https.ca, version, https.url + "/v1/chat/completions", "-H", "Content-Type: application/json",
                    "-d", json.dumps({"model": UID, "messages": QUESTION, "max_tokens": 8, "stream": True}))
        assert text.rstrip().endswith("data: [DONE]")
    curl("--cacert", https.ca, "--tls-max", "1.2", https.url + "/health")
    assert curl("--cacert", https.ca, "--resolve", f"elsewhere.example:{https.port}:127.0.0.1", f"https://elsewhere.example:{https.port}/health", expect=60) == ""
    curl(https.url + "/health", expect=60)  # a root that nobody told it of
    told = curl("-w", "%{http_code}", https.url.replace("https:", "http:") + "/health")
    assert "this port speaks TLS: use https://" in told and told.endswith("400")


def test_the_xinference_client(https, monkeypatch):
    client = pytest.importorskip("xinference_client")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", https.ca)
    c = client.RESTfulClient(https.url)
    try:
        assert UID in c.list_models()
        model = c.get_model(UID)
        answer = model.chat(QUESTION, generate_config={"max_tokens": 8, "stream": True})
        assert len(list(answer)) > 2
    finally:
        c.close()


def test_the_command_line(https, tmp_path):
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "BATON_ENDPOINT": https.url, "BATON_CA_FILE": https.ca}
    for name in ("SSL_CERT_FILE", "BATON_API_KEY", "XINFERENCE_API_KEY"):
        env.pop(name, None)

    def baton(*args, expect=0, without=(), **more):
        r = subprocess.run([BINARY, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120 * PATIENCE,
                           env={**{k: v for k, v in env.items() if k not in without}, **more})
        assert r.returncode == expect, r.stdout + r.stderr
        return r.stdout + r.stderr

    assert UID in baton("list")
    assert UID in baton("status")
    assert baton("chat", "Hello", "--max-tokens", "5", "--stats")
    assert baton("generate", "One, two,", "--max-tokens", "5", "--stream=false")
    assert "TTFT" in baton("top", "--once", "--interval", "200").upper()
    baton("launch", "--model-path", MODEL, "--model-uid", "second", "--n-gpu", "none", "--max_model_len", "512", "--kv_cache_bytes", str(64 << 20))
    baton("terminate", "--model-uid", "second")
    bench = ("bench", "serve", "--model", UID, "--requests", "6", "--concurrency", "3", "--input-tokens", "8", "--output-tokens", "4", "--json")
    assert json.loads(baton(*bench).splitlines()[0])["failed"] == 0
    assert json.loads(baton(*bench, "--ca-file", https.ca, without=("BATON_CA_FILE",)).splitlines()[0])["failed"] == 0
    assert "certificate is not trusted" in (out := baton(*bench, without=("BATON_CA_FILE",), expect=1)) and "--ca-file" in out
    assert "asks for no login" in baton("login", "--username", "u", "--password", "p")
    # The ways to name the root.
    assert UID in baton("list", "--ca-file", https.ca, without=("BATON_CA_FILE",))
    assert UID in baton("list", without=("BATON_CA_FILE",), SSL_CERT_FILE=https.ca)
    assert "certificate is not trusted" in (out := baton("list", without=("BATON_CA_FILE",), expect=1)) and "--ca-file" in out
    assert "no trusted certificates" in baton("list", "--ca-file", str(tmp_path / "none"), expect=1)
    assert "use https://" in baton("list", "-e", https.url.replace("https:", "http:"), expect=1)


def test_the_page_and_what_it_asks_for(https):
    assert "text/html" in https.http.get("/").headers["content-type"]
    assert https.http.get("/v1/cluster/auth").status_code == 200
    assert "content-security-policy" in https.http.get("/").headers


def test_the_page_in_a_browser(https):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
    if not browser:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as p:
        b = p.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = b.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(30_000 * PATIENCE)
        complaints = []
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(f"{https.url}/#/running")
        page.wait_for_selector(f"main.view-running >> text={UID}")
        assert complaints == []
        b.close()


# ---- connections --------------------------------------------------------------------------------------------------------


def test_requests_behind_each_other_and_big_bodies(https):
    with context(https).wrap_socket(raw(https, 60), server_hostname="127.0.0.1") as s:
        assert s.version() == "TLSv1.3"
        body = json.dumps({"model": UID, "input": "word " * 100_000}).encode()
        many = b"".join(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" for _ in range(4))
        s.sendall(many + b"POST /v1/tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                  + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := s.recv(65536):
            answer += piece
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert len(statuses) == 6 and statuses[:4] == [b"200"] * 4 and statuses[5] == b"200", statuses


def test_two_hundred_connections_beside_two_hundred_that_say_nothing(https):
    silent = [raw(https) for _ in range(100)]
    begun = [raw(https) for _ in range(100)]
    for s in begun:
        s.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    try:
        tls = context(https)

        def ask(i):
            with httpx.Client(base_url=https.url, verify=tls, timeout=120 * PATIENCE) as client:
                assert client.get("/health").status_code == 200
                with client.stream("POST", "/v1/completions", json={"model": UID, "prompt": f"{i}", "max_tokens": 3, "ignore_eos": True, "stream": True}) as r:
                    return [line for line in r.iter_lines() if line][-1]

        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            assert set(pool.map(ask, range(200))) == {"data: [DONE]"}
    finally:
        for s in silent + begun:
            s.close()
    wait_for(lambda: https.http.get("/health").status_code == 200, 5, "it serves")


@pytest.mark.parametrize("how", ["alert", "fin", "reset"])
def test_a_client_that_leaves_is_noticed(https, how):
    aborted = https.metric("baton_requests_total", outcome="aborted")
    tcp = raw(https, 60)
    s = context(https).wrap_socket(tcp, server_hostname="127.0.0.1")
    body = json.dumps({"model": UID, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True, "request_id": f"leaves-{how}"}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while b"data: " not in s.recv(65536):
        pass
    if how == "alert":
        s.settimeout(0.01)
        try:
            s.unwrap()
        except OSError:
            pass
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    https.awaited("request.done", req=f"leaves-{how}")
    assert not https.lines("request.done", req=f"leaves-{how}", outcome="length")
    https.settled("baton_requests_total", aborted + 1, outcome="aborted")
    assert https.complete("One", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_old_protocols_are_refused(https):
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        c = ssl._create_unverified_context()
        c.set_ciphers("ALL:@SECLEVEL=0")
        c.minimum_version = c.maximum_version = version
        with pytest.raises((ssl.SSLError, OSError)), raw(https) as s:
            c.wrap_socket(s)
    assert https.awaited("http.handshake_failed")
    wait_for(lambda: https.metric("baton_tls_handshake_failures_total") >= 2, 5, "and counted")
    assert https.http.get("/health").status_code == 200


# ---- certificates -------------------------------------------------------------------------------------------------------


def test_sighup_exchanges_the_certificate_and_refuses_a_bad_one(certificates, tmp_path):
    mine = {k: tmp_path / v.name for k, v in certificates.items()}
    for k, path in mine.items():
        path.write_bytes(certificates[k].read_bytes())
    new = make_certificates(tmp_path / "new", "renewed")
    bundle = tmp_path / "bundle"  # clients that know both roots
    bundle.write_text(certificates["ca"].read_text() + new["ca"].read_text())
    with Server(tls={**mine, "ca": bundle}) as server:
        server.launch("1p1d")
        old = fingerprint(certificates)
        assert certificate_seen(server) == old and server.lines("tls.certificate", sha256=old)
        assert server.metric("baton_tls_certificate_expiry_timestamp_seconds") == expiry(certificates)

        def hang_up(event, count):
            server.process.send_signal(signal.SIGHUP)
            return wait_for(lambda: len(found := server.lines(event)) == count and found[-1], 5, f"{count} x {event}")

        body = {"model": UID, "prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body, timeout=60 * PATIENCE) as stream:
            lines = stream.iter_lines()
            next(lines)
            mine["key"].write_bytes(new["key"].read_bytes())  # half of a renewal
            assert "is not the key of" in hang_up("tls.reload_failed", 1)
            assert certificate_seen(server) == old
            summary = server.awaited("settings.reloaded")[-1]
            assert "warning" in summary and re.search(r'taken="?"? at_the_next_start="?"? refused="?tls_certificate,tls_key"?', summary), "what was refused is not told as taken"
            mine["cert"].write_bytes(new["cert"].read_bytes())
            assert "refused" not in hang_up("settings.reloaded", 2)
            assert certificate_seen(server) == fingerprint(new)
            assert server.metric("baton_tls_certificate_expiry_timestamp_seconds") == expiry(new)
            assert [line for line in lines if line][-1] == "data: [DONE]"  # a connection keeps what it began with
        mine["cert"].write_text("nothing")
        assert "no certificate in PEM" in hang_up("tls.reload_failed", 2)
        assert certificate_seen(server) == fingerprint(new)
        with httpx.Client(verify=ssl.create_default_context(cafile=new["ca"])) as client:
            assert client.get(server.url + "/health").status_code == 200


def test_files_that_are_no_good_stop_the_start(certificates, tmp_path):
    other = make_certificates(tmp_path / "other")

    def serve(*args, env=None, config=None):
        path = tmp_path / "c.json"
        path.write_text(json.dumps({"port": 0, "local_worker": False, **(config or {})}))
        r = subprocess.run([BINARY, "serve", "--config", str(path), "--state-dir", str(tmp_path / "state"), *args], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                           timeout=30 * PATIENCE, env={**os.environ, **(env or {})})
        assert r.returncode != 0
        return r.stdout + r.stderr

    cert, key = str(certificates["cert"]), str(certificates["key"])
    assert "is not the key of" in serve("--tls-certificate", cert, "--tls-key", str(other["key"]))
    assert "cannot be read: No such file" in serve(env={"BATON_TLS_CERTIFICATE": cert, "BATON_TLS_KEY": str(tmp_path / "none")})
    assert "tls_key must be set where tls_certificate is" in serve("--tls-certificate", cert)
    assert "tls_certificate must be set where tls_key is" in serve(config={"tls_key": key})
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(locked)], check=True, capture_output=True)
    assert "without a password: it is encrypted" in serve("--tls-certificate", cert, "--tls-key", str(locked))
    assert "no private key in PEM without a password: it holds none" in serve("--tls-certificate", cert, "--tls-key", cert)
    assert "no certificate in PEM that a server can use: it holds none" in serve("--tls-certificate", key, "--tls-key", key)
    cut = tmp_path / "cut.pem"
    cut.write_text(certificates["cert"].read_text()[:300])
    assert "it is damaged or cut off" in serve("--tls-certificate", str(cut), "--tls-key", key)
    assert "it is a folder" in serve("--tls-certificate", str(tmp_path), "--tls-key", key)


def test_the_doctor_looks_at_the_certificate(certificates, tmp_path):
    def doctor(*args):
        r = subprocess.run([BINARY, "doctor", "--json", "--port", "0", "--state-dir", str(tmp_path / "s"), "--cache-dir", str(tmp_path / "c"), *args], capture_output=True, text=True)
        return {f["what"]: f for f in json.loads(r.stdout)["findings"]}

    assert "TLS" not in doctor()
    good = doctor("--tls-certificate", str(certificates["cert"]), "--tls-key", str(certificates["key"]))["TLS"]
    assert good["state"] == "good" or "expires within" in good["found"]
    assert "localhost, 127.0.0.1" in good["found"]
    assert doctor("--tls-certificate", str(certificates["cert"]), "--tls-key", str(certificates["ca_key"]))["TLS"]["state"] == "bad"


# ---- the end ------------------------------------------------------------------------------------------------------------


def test_a_stream_that_runs_when_the_end_comes_is_finished(certificates):
    with Server(tls=certificates) as server:
        server.launch("1p1d")
        body = {"model": UID, "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
        half = raw(server)
        half.sendall(b"\x16\x03")
        with server.http.stream("POST", "/v1/completions", json=body, timeout=60 * PATIENCE) as stream:
            lines = stream.iter_lines()
            next(lines)
            begin = time.monotonic()
            server.process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(20 * PATIENCE) == 0
        assert time.monotonic() - begin < 30 * PATIENCE
        half.close()
