"""hub::pull() against a stand-in for a hub: TLS, faults, resume, other processes, and the real huggingface_hub beside it."""

import base64
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest
from hub_stand_in import Fault, Proxy, StandIn, wait_until

TOOL = os.environ.get("BATON_HUB_TOOL") or str(Path(harness.BINARY).resolve().parent / "tests/baton-hub-tool")
REPO = "org/model"


@pytest.fixture(autouse=True)
def needs_tool():
    if not os.path.exists(TOOL):
        pytest.skip(f"{TOOL} is not built")


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def safetensors_repo():
    weights = {f"model-0000{i}-of-00002.safetensors": noise(i, 300_000 + i) for i in (1, 2)}
    index = {"metadata": {}, "weight_map": {f"layer.{i}": name for i, name in enumerate(weights)}}
    return {"config.json": b'{"model_type":"qwen2"}', "tokenizer.json": noise(7, 5000), "tokenizer_config.json": b"{}", "README.md": b"read me",
            "model.safetensors.index.json": json.dumps(index).encode(), **weights, "onnx/model.onnx": noise(9, 2000), "empty.txt": b""}


@pytest.fixture
def hub(tmp_path):
    with StandIn(tmp_path, {REPO: safetensors_repo(), "org/gguf": {"m-q4_0.gguf": noise(3, 700_000), "m-q8_0.gguf": noise(4, 1000)}}) as stand_in:
        yield stand_in


class Tool:
    def __init__(self, hub, home, *args, env=None):
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith(("HF_", "HUGGING"))}
        self.process = subprocess.Popen([TOOL, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**clean, **hub.environment(home), **(env or {})})

    def result(self, timeout=60):
        out, self.log = self.process.communicate(timeout=timeout)
        assert out, f"{self.process.returncode} {self.log}"
        return json.loads(out)


def pull(hub, home, repo=REPO, *args, env=None):
    return Tool(hub, home, "--repo", repo, *args, env=env).result()


def check_snapshot(hub, home, repo, files):
    folder = Path(home) / "hub" / ("models--" + repo.replace("/", "--"))
    assert (folder / "refs/main").read_text() == hub.COMMIT
    for name in files:
        link = folder / "snapshots" / hub.COMMIT / name
        assert link.is_symlink() and not os.path.isabs(os.readlink(link))
        content = hub.repos[repo][name]
        assert link.resolve() == (folder / "blobs" / hub.etag(content)).resolve()
        assert link.read_bytes() == content
    assert not list(folder.glob("**/*.incomplete")) and not list(folder.glob("**/*.tmp"))


WANTED = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_a_model_is_pulled_into_the_standard_layout(hub, tmp_path):
    got = pull(hub, tmp_path / "home")
    assert got["files"] == WANTED and got["format"] == "pytorch" and got["commit"] == hub.COMMIT
    assert got["path"] == got["snapshot_dir"]
    check_snapshot(hub, tmp_path / "home", REPO, WANTED)
    total = sum(len(hub.repos[REPO][n]) for n in WANTED)
    assert got["bytes_downloaded"] == total
    assert got["progress"]["bytes_done"] == total and got["progress"]["steady"] and got["progress"]["calls"] >= 2
    assert not (Path(got["path"]) / "README.md").exists()
    # Large files came in ranges, over the other host.
    assert len(hub.seen("cdn", "", "GET")) >= 10
    assert all("range" in r[3] for r in hub.seen("cdn"))


def test_what_is_there_is_not_asked_for_again(hub, tmp_path):
    pull(hub, tmp_path / "home")
    hub.requests.clear()
    again = pull(hub, tmp_path / "home")
    assert again["bytes_downloaded"] == 0 and len(hub.requests) == 1  # the list alone
    cached = pull(hub, tmp_path / "home", REPO, "--cached", 1)
    assert cached["path"] == again["path"] and len(hub.requests) == 1


def test_huggingface_hub_reads_what_we_wrote_and_the_reverse(hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    script = ("import sys, json, huggingface_hub as h; "
              "print(json.dumps({'dir': h.snapshot_download(sys.argv[1], allow_patterns=json.loads(sys.argv[2]), local_files_only=sys.argv[3] == 'offline'), "
              "'repos': [[r.repo_id, r.size_on_disk, r.nb_files] for r in h.scan_cache_dir().repos], 'warnings': [str(w) for w in h.scan_cache_dir().warnings]}))")

    def theirs(home, mode, **env):
        done = subprocess.run([sys.executable, "-c", script, REPO, json.dumps(WANTED), mode], capture_output=True, text=True,
                              env={**clean, **hub.environment(home), **env})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    ours = pull(hub, tmp_path / "a")
    read = theirs(tmp_path / "a", "offline", HF_HUB_OFFLINE="1")
    assert read["dir"] == ours["path"] and read["warnings"] == []
    assert read["repos"] == [[REPO, sum(len(hub.repos[REPO][n]) for n in WANTED), len(WANTED)]]
    online = theirs(tmp_path / "a", "online")  # finds every file in its place: nothing is written anew
    assert online["dir"] == ours["path"]

    written = theirs(tmp_path / "b", "online")
    hub.requests.clear()
    mine = pull(hub, tmp_path / "b", REPO, "--cached", 1)
    assert mine["path"] == written["dir"] and mine["files"] == WANTED and not hub.requests
    assert pull(hub, tmp_path / "b")["bytes_downloaded"] == 0
    check_snapshot(hub, tmp_path / "b", REPO, WANTED)


def test_a_hub_that_lists_no_sizes_is_asked_for_each_file(tmp_path):
    with StandIn(tmp_path, {REPO: safetensors_repo()}, blobs=False) as hub:
        pull(hub, tmp_path / "home")
        check_snapshot(hub, tmp_path / "home", REPO, WANTED)
        assert len(hub.seen("hub", "/resolve/", "HEAD")) == len(WANTED)


def test_revisions(hub, tmp_path):
    got = pull(hub, tmp_path / "home", REPO, "--revision", "v1")
    folder = tmp_path / "home/hub/models--org--model"
    assert got["commit"] == hub.COMMIT and (folder / "refs/v1").read_text() == hub.COMMIT
    got = pull(hub, tmp_path / "other", REPO, "--revision", hub.COMMIT)
    assert "commit" in got and not list((tmp_path / "other/hub/models--org--model/refs").iterdir())
    assert "revision nope of org/model does not exist" in pull(hub, tmp_path / "home", REPO, "--revision", "nope")["error"]
    hub.listing_override = json.dumps({"sha": "f" * 40, "siblings": []}).encode()
    assert "another commit" in pull(hub, tmp_path / "third", REPO, "--revision", hub.COMMIT)["error"]


def test_one_gguf(hub, tmp_path):
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "Q4_0")
    assert got["path"].endswith(f"/snapshots/{hub.COMMIT}/m-q4_0.gguf") and got["format"] == "ggufv2"
    assert Path(got["path"]).read_bytes() == hub.repos["org/gguf"]["m-q4_0.gguf"]
    assert "choose a quantization: q4_0, q8_0" in pull(hub, tmp_path / "home", "org/gguf")["error"]
    assert "it has q4_0, q8_0" in pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q2_k")["error"]
    assert pull(hub, tmp_path / "home", "org/gguf", "--file", "m-q8_0.gguf")["path"].endswith("m-q8_0.gguf")
    listed = Tool(hub, tmp_path / "home", "--list", 1).result()
    assert [(m["repo"], m["files"], m["revisions"]) for m in listed] == [("org/gguf", ["m-q4_0.gguf", "m-q8_0.gguf"], ["main"])]


def test_modelscope(hub, tmp_path):
    got = pull(hub, tmp_path / "home", REPO, "--hub", "modelscope")
    assert got["files"] == WANTED and "/modelscope/models--org--model/snapshots/" in got["path"]
    for name in WANTED:
        assert (Path(got["path"]) / name).read_bytes() == hub.repos[REPO][name]
    assert pull(hub, tmp_path / "home", REPO, "--hub", "modelscope")["bytes_downloaded"] == 0
    assert pull(hub, tmp_path / "home", "org/none", "--hub", "modelscope")["code"] == "not_found"


# ---- faults -------------------------------------------------------------------------------------------------------------


def test_cut_connections_are_taken_up_where_they_broke(hub, tmp_path):
    hub.faults = [Fault(".", times=12, cut_after=20_000, host="cdn")]
    got = pull(hub, tmp_path / "home")
    assert "error" not in got, got
    check_snapshot(hub, tmp_path / "home", REPO, WANTED)
    begins = [int(r[3]["range"].split("=")[1].split("-")[0]) for r in hub.seen("cdn")]
    assert any(b % 65536 != 0 for b in begins)


def test_a_hub_that_always_cuts_is_given_up(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, cut_after=0, host="cdn")]
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")
    assert got["code"] == "unavailable" and len(hub.seen("cdn")) < 60


def test_a_wrong_digest_is_refused_and_leaves_nothing(hub, tmp_path):
    good = hub.repos["org/gguf"]["m-q4_0.gguf"]
    hub.faults = [Fault(".", times=-1, replace=bytes([good[0] ^ 1]) + good[1:], host="cdn")]
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")
    assert got["code"] == "corrupt" and "m-q4_0.gguf has the SHA-256" in got["error"] and hashlib.sha256(good).hexdigest() in got["error"]
    blobs = tmp_path / "home/hub/models--org--gguf/blobs"
    assert list(blobs.iterdir()) == []
    hub.faults = [Fault("/config.json", times=-1, replace=b'{"model_type":"qwen3"}', host="hub", method="GET")]
    assert "git SHA-1" in pull(hub, tmp_path / "home")["error"]
    assert not (tmp_path / "home/hub/models--org--model/refs/main").exists()


@pytest.mark.parametrize("status,headers,code", [(429, {"Retry-After": "1"}, None), (503, {}, None), (500, {}, None), (429, {"Retry-After": "3600"}, "unavailable"),
                                                 (418, {}, "corrupt")])
def test_statuses_that_pass_and_those_that_do_not(hub, tmp_path, status, headers, code):
    hub.faults = [Fault("/api/models", times=2, status=status, headers=headers), Fault(".", times=1, status=status, headers=headers, host="cdn")]
    begin = time.monotonic()
    got = pull(hub, tmp_path / "home")
    assert got.get("code") == code, got
    if headers.get("Retry-After") == "1":
        assert time.monotonic() - begin > 2
    if code:
        assert len(hub.seen("hub", "/api/models")) == 1


def test_what_is_missing_or_closed_is_said(hub, tmp_path):
    home = tmp_path / "home"
    assert pull(hub, home, "org/none")["code"] == "not_found"
    assert "org/none" in pull(hub, home, "org/none")["error"]
    hub.token = "hf_secret"
    refused = pull(hub, home)
    assert refused["code"] == "unauthorized" and "no token is set (HF_TOKEN)" in refused["error"]
    assert "the token gives no access" in pull(hub, home, env={"HF_TOKEN": "hf_wrong"})["error"]
    assert "hf_wrong" not in json.dumps(pull(hub, home, env={"HF_TOKEN": "hf_wrong"}))
    hub.faults = [Fault("/resolve/", times=-1, status=403, headers={"X-Error-Code": "GatedRepo"})]
    gated = pull(hub, home, env={"HF_TOKEN": "hf_secret"})
    assert gated["code"] == "unauthorized" and "gated" in gated["error"]
    hub.faults = []
    del hub.repos[REPO]["tokenizer.json"]
    assert pull(hub, home, env={"HF_TOKEN": "hf_secret"})["error"] == "org/model has no tokenizer.json"


def test_credentials_stay_with_the_hub(hub, tmp_path):
    hub.token = "hf_secret"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("hf_secret\n")
    assert "error" not in pull(hub, tmp_path / "home")
    assert all(r[3].get("authorization") == "Bearer hf_secret" for r in hub.seen("hub"))
    assert hub.seen("cdn") and not any("authorization" in r[3] for r in hub.seen("cdn"))


def test_redirects(hub, tmp_path):
    hub.faults = [Fault("/api/models", times=1, status=307, headers={"Location": f"/api/models/{REPO}/revision/main?blobs=true&again=1"})]
    assert "error" not in pull(hub, tmp_path / "a")
    hub.faults = [Fault("/api/models", times=-1, status=302, headers={"Location": "/api/models/x/revision/main"})]
    assert "circles" in pull(hub, tmp_path / "b")["error"]
    hub.faults = [Fault("/api/models", times=-1, status=302, headers={"Location": hub.url.replace("https", "http") + "/x"})]
    assert "from https to http" in pull(hub, tmp_path / "b")["error"]
    # A signed address that expired is asked for anew.
    hub.faults, hub.requests = [Fault(".", times=1, status=403, host="cdn", skip=3)], []
    assert "error" not in pull(hub, tmp_path / "c", "org/gguf", "--quantization", "q4_0", "--connections", 1)
    assert len(hub.seen("hub", "/resolve/", "GET")) == 2


def test_certificates_are_verified(hub, tmp_path):
    for env in ({"BATON_HUB_CA_FILE": "", "REQUESTS_CA_BUNDLE": "", "SSL_CERT_FILE": ""}, ):
        got = pull(hub, tmp_path / "home", env=env)
        assert got["code"] == "unavailable" and "not trusted" in got["error"] and not hub.requests
    # The right root, but another host's name.
    got = pull(hub, tmp_path / "home", env={"HF_ENDPOINT": hub.url.replace("127.0.0.1", "127.0.0.2")})
    assert got["code"] == "unavailable"
    got = pull(hub, tmp_path / "home", env={"BATON_HUB_CA_FILE": "/none.pem"})
    assert got["param"] == "hub_ca_file"


def test_a_silent_server_is_not_waited_for(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, stall_after=0, host="cdn")]
    begin = time.monotonic()
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0", "--silence", 300)
    assert got["code"] == "timeout" and time.monotonic() - begin < 30
    hub.faults = [Fault(".", times=1, stall_after=16384, host="cdn")]
    assert "error" not in pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0", "--silence", 300)


def test_a_slow_server_is(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, seconds_a_piece=0.1, host="cdn")]
    assert "error" not in pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0", "--silence", 2000)


def test_a_server_without_ranges(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, ignore_range=True, host="cdn")]
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")
    assert "error" not in got, got
    check_snapshot(hub, tmp_path / "home", "org/gguf", ["m-q4_0.gguf"])


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000,
                                 b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
                                 b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[[]]",
                                 b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000])
def test_hostile_lists(hub, tmp_path, raw):
    hub.faults = [Fault("/api/models", times=-1, raw=raw)]
    assert pull(hub, tmp_path / "home")["code"] == "corrupt"


@pytest.mark.parametrize("name", ["../../../evil.json", "/tmp/evil.json", "a/../../config.json", "config.json\u0000", "..\\config.json"])
def test_hostile_names(hub, tmp_path, name):
    hub.listing_override = json.dumps({"sha": hub.COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": name}]}).encode()
    got = pull(hub, tmp_path / "home")
    assert got["code"] == "corrupt" and not list(tmp_path.glob("**/evil*"))


def test_hostile_lengths(hub, tmp_path):
    good = hub.repos["org/gguf"]["m-q8_0.gguf"]
    for content in (good + b"more", good[:-1], b""):
        hub.faults = [Fault(".", times=-1, replace=content), Fault(".", times=-1, replace=content, host="cdn")]
        got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q8_0")
        assert got["code"] in ("corrupt", "unavailable"), got
    assert not list((tmp_path / "home/hub/models--org--gguf").glob("snapshots/*/*"))


def test_a_disk_without_room_is_told_first(hub, tmp_path):
    hub.listing_override = json.dumps({"sha": hub.COMMIT, "siblings": [{"rfilename": "m.gguf", "lfs": {"sha256": "a" * 64, "size": 1 << 43}}]}).encode()
    got = pull(hub, tmp_path / "home", "org/gguf")
    assert got["code"] == "io" and f"needs {1 << 43} bytes more" in got["error"] and not hub.seen("cdn")


def test_config_is_looked_at_before_weights(hub, tmp_path):
    assert pull(hub, tmp_path / "home", REPO, "--refuse", 1)["error"] == "refused"
    assert not hub.seen("cdn", hashlib.sha256(hub.repos[REPO]["model-00001-of-00002.safetensors"]).hexdigest())


# ---- resume, cancel, other processes, offline ---------------------------------------------------------------------------


def test_cancel_keeps_what_came_and_the_next_pull_goes_on(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, seconds_a_piece=0.05, host="cdn")]
    content = hub.repos["org/gguf"]["m-q4_0.gguf"]
    tool = Tool(hub, tmp_path / "home", "--repo", "org/gguf", "--quantization", "q4_0", "--range", 200_000, "--connections", 2)
    partial = tmp_path / f"home/hub/models--org--gguf/blobs/{hub.etag(content)}.incomplete"
    wait_until(lambda: len(hub.seen("cdn")) >= 2)
    time.sleep(0.3)
    tool.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert tool.result()["code"] == "cancelled" and time.monotonic() - begin < 3
    have = partial.read_bytes()
    assert have and content.startswith(have)
    hub.faults, hub.requests = [], []
    got = pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")
    assert got["bytes_downloaded"] == len(content) - len(have)
    assert min(int(r[3]["range"].split("=")[1].split("-")[0]) for r in hub.seen("cdn")) == len(have)
    check_snapshot(hub, tmp_path / "home", "org/gguf", ["m-q4_0.gguf"])


def test_a_killed_pull_is_resumed(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, seconds_a_piece=0.02, host="cdn")]
    content = hub.repos["org/gguf"]["m-q4_0.gguf"]
    tool = Tool(hub, tmp_path / "home", "--repo", "org/gguf", "--quantization", "q4_0", "--range", 50_000, "--connections", 3)
    partial = tmp_path / f"home/hub/models--org--gguf/blobs/{hub.etag(content)}.incomplete"
    wait_until(lambda: partial.exists() and partial.stat().st_size >= 100_000)
    tool.process.kill()
    tool.process.communicate()
    assert content.startswith(partial.read_bytes())
    hub.faults = []
    assert pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")["bytes_downloaded"] < len(content) - 90_000
    check_snapshot(hub, tmp_path / "home", "org/gguf", ["m-q4_0.gguf"])


def test_a_wrong_beginning_is_thrown_away(hub, tmp_path):
    content = hub.repos["org/gguf"]["m-q4_0.gguf"]
    partial = tmp_path / f"home/hub/models--org--gguf/blobs/{hub.etag(content)}.incomplete"
    for left in (b"wrong" * 1000, content + b"too long", bytes(len(content))):
        partial.parent.mkdir(parents=True, exist_ok=True)
        (partial.parent / hub.etag(content)).unlink(missing_ok=True)
        partial.write_bytes(left)
        assert "error" not in pull(hub, tmp_path / "home", "org/gguf", "--quantization", "q4_0")
        check_snapshot(hub, tmp_path / "home", "org/gguf", ["m-q4_0.gguf"])


def test_processes_share_one_download(hub, tmp_path):
    hub.faults = [Fault(".", times=-1, seconds_a_piece=0.02, host="cdn")]
    tools = [Tool(hub, tmp_path / "home", "--repo", REPO) for _ in range(4)]
    results = [t.result() for t in tools]
    assert all("error" not in r for r in results), results
    check_snapshot(hub, tmp_path / "home", REPO, WANTED)
    assert sum(r["bytes_downloaded"] for r in results) == sum(len(hub.repos[REPO][n]) for n in WANTED)


def test_offline_takes_the_cache_or_names_what_is_missing(hub, tmp_path):
    home, offline = tmp_path / "home", {"HF_HUB_OFFLINE": "1"}
    got = pull(hub, home, env=offline)
    assert got["code"] == "unavailable" and "org/model (revision main) is not in the cache" in got["error"] and "HF_HUB_OFFLINE" in got["error"]
    there = pull(hub, home)
    hub.requests.clear()
    assert pull(hub, home, env=offline)["path"] == there["path"] and not hub.requests
    (Path(there["path"]) / "model-00002-of-00002.safetensors").unlink()
    assert "org/model has no model-00002-of-00002.safetensors" in pull(hub, home, env=offline)["error"]


def test_without_a_network_what_is_complete_is_taken(hub, tmp_path):
    there = pull(hub, tmp_path / "home")
    nowhere = {"HF_ENDPOINT": "https://127.0.0.1:9"}
    assert pull(hub, tmp_path / "home", env=nowhere)["path"] == there["path"]
    assert pull(hub, tmp_path / "new", env=nowhere)["code"] == "unavailable"


def test_a_proxy_is_used_and_bypassed(hub, tmp_path):
    proxy = Proxy()
    env = {"HTTPS_PROXY": f"http://user:p%40ss@{proxy.url}"}
    assert "error" not in pull(hub, tmp_path / "a", env=env)
    hosts = {t for _, t, _ in proxy.asked}
    assert hosts == {hub.url.split("//")[1], hub.cdn_url.split("//")[1]}
    assert all(a == "Basic " + base64.b64encode(b"user:p@ss").decode() for _, _, a in proxy.asked)
    proxy.asked.clear()
    assert "error" not in pull(hub, tmp_path / "b", env={**env, "NO_PROXY": "127.0.0.1,localhost"})
    assert not proxy.asked
    proxy.close()
    with StandIn(tmp_path, {REPO: safetensors_repo()}, tls=False) as plain:
        proxy = Proxy()
        assert "error" not in pull(plain, tmp_path / "c", env={"HTTP_PROXY": proxy.url})
        assert {m for m, _, _ in proxy.asked} == {"GET"}
        proxy.close()
