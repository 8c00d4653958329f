"""/metrics: valid exposition, counted once, equal to the usage that clients were told; the dashboard and the alerts ask for what is there."""

import concurrent.futures
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import harness
import pytest
from harness import UID, wait_for

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture(scope="session")
def promtool(tmp_path_factory):
    """promtool of Debian's package prometheus, unpacked, not installed: no service is started."""
    if found := shutil.which("promtool"):
        return found
    folder = tmp_path_factory.mktemp("promtool")
    got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True)
    packages = list(folder.glob("*.deb"))
    if got.returncode or not packages:
        pytest.skip(f"promtool is not here and cannot be fetched: {got.stderr.strip()[-200:]}")
    subprocess.run(["dpkg-deb", "-x", packages[0], folder / "root"], check=True)
    return str(folder / "root/usr/bin/promtool")


def names_in(text):
    """Metric names of expressions: words in front of `{`, `[`, `(`-free ends, that begin as ours do."""
    return set(re.findall(r"\b((?:baton_|xinference:|vllm:)\w+)", text))


def families(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


def test_promtool_finds_no_fault(pd, promtool):
    pd.complete("One, two, three,", max_tokens=4)
    r = subprocess.run([promtool, "check", "metrics"], input=pd.http.get("/metrics").text, capture_output=True, text=True)
    # Names of Xinference's dashboards are its own; of ours nothing may be said.
    ours = [line for line in (r.stdout + r.stderr).splitlines() if line.startswith("baton_") and "non-histogram and non-summary" not in line]
    assert r.returncode in (0, 3) and ours == [], r.stdout + r.stderr


def test_the_alerts_are_rules_about_metrics_that_exist(pd, promtool):
    r = subprocess.run([promtool, "check", "rules", str(CONFIG / "alerts.yml")], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
    there = families(pd.http.get("/metrics").text) | {"baton_tls_certificate_expiry_timestamp_seconds", "baton_tls_handshake_failures_total"}  # test_tls.py
    for file in ("alerts.yml", "grafana-dashboard.json"):
        asked = {re.sub(r"_(bucket|sum|count)$", "", n) for n in names_in((CONFIG / file).read_text())}
        assert asked and asked - there == set(), file


def test_every_family_is_announced_before_its_first_event():
    """With type and help from the start, so that rules about it can be written; the events only add samples."""
    with harness.Server() as server:
        text = server.http.get("/metrics").text
        begun = families(text)
        assert {"baton_fallbacks_total", "baton_failovers_total", "baton_handoffs_total", "baton_requests_total", "xinference:model_request_total", "vllm:num_requests_running"} <= begun
        assert {n for n in begun if re.search(rf"^# HELP {n} \S", text, re.M)} == begun
        assert not re.search(r"^baton_fallbacks_total", text, re.M), "its reasons are not known before"
        server.launch("1p1d")
        server.complete("One, two, three,", max_tokens=4, ignore_eos=True)
        assert families(server.http.get("/metrics").text) == begun


def test_the_dashboard_is_one(promtool, tmp_path):
    board = json.loads((CONFIG / "grafana-dashboard.json").read_text())
    panels = [p for p in board["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) and len(panels) > 12
    rules = [{"record": f"panel:{p['id']}_{t['refId']}", "expr": t["expr"].replace("$__rate_interval", "1m").replace('"$model"', '".*"')} for p in panels for t in p["targets"]]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    r = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


@pytest.mark.parametrize("topology", ["1p1d", "hybrid"])
def test_requests_are_counted_once_and_tokens_as_in_usage(topology):
    with harness.Server() as server:
        server.launch(topology)
        time.sleep(1.5 * harness.PATIENCE)  # replicas report the probes of the launch within a second
        before = {n: server.metric(n) for n in ("baton_prompt_tokens_total", "baton_completion_tokens_total", "baton_cached_tokens_total", "baton_handoffs_total",
                                                "baton_generated_tokens_total")}
        usages = []
        for i in range(6):
            usages.append(server.complete(f"{i} little ducks went", max_tokens=3 + i)["usage"])
        usages.append(server.chat("Say a word.", max_tokens=5)["usage"])
        n = len(usages)
        assert server.metric("baton_requests_total", outcome="ok") == n
        assert server.metric("baton_requests_total", outcome="error") == server.metric("baton_requests_total", outcome="aborted") == 0
        grown = lambda name: server.metric(name) - before[name]
        assert grown("baton_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages)
        assert grown("baton_completion_tokens_total") == sum(u["completion_tokens"] for u in usages)
        assert grown("baton_cached_tokens_total") == sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        for name in ("baton_ttft_seconds", "xinference:model_request_duration_seconds"):
            assert server.metric(f"{name}_count") == n, name
        if topology == "1p1d":
            assert grown("baton_handoffs_total") == n
        # Every token that a client got was sampled once, on whichever replica.
        server.settled("baton_generated_tokens_total", before["baton_generated_tokens_total"] + sum(u["completion_tokens"] for u in usages), timeout=5)


STAGES = ["prepare", "queue", "prefill", "handoff", "decode"]


@pytest.mark.parametrize("topology", ["1p1d", "hybrid"])
def test_each_request_is_once_in_each_stage_and_stages_are_parts_of_its_time(topology):
    with harness.Server() as server:
        server.launch(topology)
        n, tokens, took = 5, 0, 0.0
        for i in range(n):
            begin = time.monotonic()
            tokens += server.complete(f"{i} sheep and then", max_tokens=4 + i, ignore_eos=True)["usage"]["completion_tokens"]
            took += time.monotonic() - begin
        server.complete("One token only", max_tokens=1)  # no hand-off, no gap
        server.complete("Two choices", max_tokens=3, n=2, ignore_eos=True)  # one request all the same
        handed = n + 1 if topology == "1p1d" else 0
        count = lambda name, **labels: server.metric(f"{name}_count", model_uid=UID, **labels)  # noqa: E731
        assert {s: count("baton_stage_seconds", stage=s) for s in STAGES} == {"prepare": n + 2, "queue": n + 2, "prefill": n + 2, "handoff": handed, "decode": n + 1}
        assert count("baton_token_gap_seconds", gap="first") == count("baton_token_gap_seconds", gap="later") == n + 1
        assert count("baton_handoff_added_seconds") == handed
        assert count("baton_ttft_seconds") == n + 2
        total = server.metric("baton_stage_seconds_sum") - server.metric("baton_stage_seconds_sum", stage="handoff")
        before_first = sum(server.metric("baton_stage_seconds_sum", stage=s) for s in ("prepare", "queue", "prefill"))
        assert 0 < server.metric("baton_stage_seconds_sum", stage="prefill") < before_first
        # To the first token no more than what clients waited for it; within a millisecond a request, which is what arrivals are told to.
        assert before_first <= server.metric("baton_ttft_seconds_sum") + 0.002 * (n + 2)
        assert total <= server.metric("xinference:model_request_duration_seconds_sum") + 0.003 * (n + 2)
        assert server.metric("xinference:model_request_duration_seconds_sum") > 0.9 * took - 0.1


def test_parts_that_are_made_long_are_seen_in_their_stage():
    with harness.Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        server.launch("1p1d", fault="pull_delay_ms=300", uid="slow")
        server.http.post("/v1/completions", json={"model": "slow", "prompt": "Once", "max_tokens": 6, "ignore_eos": True}).raise_for_status()
        # A mover that begins late sees the prefill's end late: what clients see of it is in the gap.
        assert server.metric("baton_stage_seconds_count", stage="handoff") == 1
        assert 0.2 < server.metric("baton_token_gap_seconds_sum", gap="first")
        assert 0.1 < server.metric("baton_handoff_added_seconds_sum") <= server.metric("baton_token_gap_seconds_sum", gap="first")
        server.launch("hybrid", uid="narrow", max_num_seqs=1)
        ask = {"model": "narrow", "prompt": "Twice", "max_tokens": 100, "ignore_eos": True}
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for answer in [pool.submit(server.http.post, "/v1/completions", json=ask) for _ in range(3)]:
                answer.result().raise_for_status()
        took = time.monotonic() - begin
        # The second waits for the first, the third for both.
        assert took * 0.5 < server.metric("baton_stage_seconds_sum", stage="queue", model_uid="narrow") <= 2 * took


@pytest.mark.parametrize("topology", ["1p1d", "hybrid"])
def test_steps_and_tokens_of_the_engines_add_up(topology):
    with harness.Server() as server:
        server.launch(topology)
        names = ["baton_engine_step_tokens_total", "baton_prefill_tokens_total", "baton_generated_tokens_total", "baton_found_tokens_total", "baton_received_tokens_total"]
        time.sleep(1.5 * harness.PATIENCE)  # replicas report the probes of the launch within a second
        before = {n: server.metric(n) for n in names}
        prompt = "The quick brown fox jumps over the lazy dog. " * 8
        usages = [server.complete(prompt, max_tokens=m, ignore_eos=True)["usage"] for m in (3, 5, 4)]
        grown = lambda name, **labels: server.metric(name, **labels) - (0 if labels else before[name])  # noqa: E731
        server.settled("baton_generated_tokens_total", before["baton_generated_tokens_total"] + 12, timeout=5)
        # The last token of a sequence is in no step; each other one, and each prompt token that was not found, is in one.
        assert grown("baton_engine_step_tokens_total") == grown("baton_prefill_tokens_total") + grown("baton_generated_tokens_total") - len(usages)
        for labels, steps in server.metrics()["baton_engine_steps_total"]:
            who = {k: labels[k] for k in ("role", "replica")}
            assert server.metric("baton_engine_step_sequences_count", **who) == steps > 0
            assert steps <= server.metric("baton_engine_step_sequences_sum", **who) <= server.metric("baton_engine_step_tokens_total", **who)
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        first = "prefill" if topology == "1p1d" else "hybrid"
        assert cached > 0 and grown("baton_found_tokens_total", role=first) == cached
        if topology == "1p1d":
            # What the decode replica did not find itself, the hand-offs brought.
            found = grown("baton_found_tokens_total", role="decode")
            assert found > 0 and found + grown("baton_received_tokens_total") == sum(u["prompt_tokens"] for u in usages)
        else:
            assert server.metric("baton_received_tokens_total") == 0


def test_requests_at_once_share_steps():
    with harness.Server() as server:
        server.launch("hybrid")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: server.complete(f"{i} geese", max_tokens=60, ignore_eos=True), range(4)))
        server.settled("baton_requests_running", 0)
        wait_for(lambda: server.metric("baton_engine_step_sequences_sum") > 1.5 * server.metric("baton_engine_step_sequences_count"), 5, "steps with more than one sequence")


def test_queues_are_those_of_the_role_that_is_waited_for():
    with harness.Server() as server:
        server.launch("1p1d", max_num_seqs=1, uid="pd")
        server.launch("hybrid", max_num_seqs=1, uid="h")
        assert {(x["model_uid"], x["role"]) for x, _ in server.metrics()["baton_queue_depth"]} == {("pd", "prefill"), ("pd", "decode"), ("h", "hybrid")}
        for uid, role in (("pd", "decode"), ("h", "hybrid")):
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                asked = [pool.submit(server.http.post, "/v1/completions", json={"model": uid, "prompt": "Wait", "max_tokens": 150, "ignore_eos": True}) for _ in range(3)]
                wait_for(lambda: server.metric("baton_queue_depth", model_uid=uid, role=role) >= 1, 20, f"a queue at {role}")
                assert all(a.result().status_code == 200 for a in asked)
            server.settled("baton_queue_depth", 0)


def test_aborts_are_requests_by_how_far_they_had_come():
    with harness.Server(env={"BATON_ALLOW_FAULT_HOOKS": "true"}) as server:
        server.launch("1p1d")
        # What a stop string ends is no abort.
        text = server.complete("Once upon a time", max_tokens=12, ignore_eos=True)["choices"][0]["text"]
        stopped = server.complete("Once upon a time", max_tokens=12, ignore_eos=True, stop=[text[len(text) // 3:][:6]])
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert server.metric("baton_aborts_total") == 0 and server.metric("baton_requests_total", outcome="ok") == 2

        def abandon(**keys):
            for i, _ in enumerate(server.stream("Once upon a time", max_tokens=1500, ignore_eos=True, **keys)):
                if i == keys.get("n", 1) * 4:
                    return

        abandon()
        server.settled("baton_aborts_total", 1, phase="decode")
        abandon(n=2)
        server.settled("baton_aborts_total", 2, phase="decode")
        server.launch("1p1d", uid="slow", fault="pull_delay_ms=60000")
        with server.http.stream("POST", "/v1/completions", json={"model": "slow", "prompt": "Once", "max_tokens": 50, "stream": True, "ignore_eos": True}) as answer:
            next(line for line in answer.iter_lines() if line.startswith("data: "))
        server.settled("baton_aborts_total", 1, phase="transfer", model_uid="slow")
        assert server.metric("baton_aborts_total") == server.metric("baton_requests_total", outcome="aborted") == 3


def test_no_text_of_users_is_a_label(pd):
    marker = "zqx-marker-91"
    pd.complete(f"{marker} and more", max_tokens=2, user=marker, request_id=f"id-{marker}")
    pd.http.post("/v1/completions", json={"model": f"none-{marker}", "prompt": "x"})
    assert marker not in pd.http.get("/metrics").text
