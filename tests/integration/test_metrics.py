"""/metrics: valid exposition, counted once, equal to the usage that clients were told; the dashboard and the alerts ask for what is there."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import harness
import pytest

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
    there = families(pd.http.get("/metrics").text)
    # Counters that have a label value only once something went wrong appear with it.
    later = {"baton_fallbacks_total", "baton_failovers_total"}
    for file in ("alerts.yml", "grafana-dashboard.json"):
        asked = {re.sub(r"_(bucket|sum|count)$", "", n) for n in names_in((CONFIG / file).read_text())}
        assert asked and asked - there - later == set(), file


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


def test_no_text_of_users_is_a_label(pd):
    marker = "zqx-marker-91"
    pd.complete(f"{marker} and more", max_tokens=2, user=marker, request_id=f"id-{marker}")
    pd.http.post("/v1/completions", json={"model": f"none-{marker}", "prompt": "x"})
    assert marker not in pd.http.get("/metrics").text
