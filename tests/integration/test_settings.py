"""The settings file: its JSON schema and `baton config check` say the same, the examples are good, the document is current."""

import concurrent.futures
import copy
import json
import os
import random
import subprocess
import threading
from pathlib import Path

import harness
import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "config").glob("*p*d.json"))
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}


def baton(*args, **keys):
    return subprocess.run([harness.BINARY, *args], capture_output=True, text=True, timeout=60 * harness.PATIENCE, env=ENVIRONMENT, **keys)


def schema_of(what):
    r = baton("config", "schema", what)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


@pytest.fixture(scope="module")
def schemas():
    return {what: schema_of(what) for what in ("settings", "launch", "replica_config")}


def validator(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@pytest.fixture(scope="module")
def judges(schemas, tmp_path_factory):
    """settings → what the schema and what the program says of it: None where it is good."""
    by_schema = validator(schemas["settings"])
    folder = tmp_path_factory.mktemp("settings")

    def schema_says(settings):
        return next((e.message for e in by_schema.iter_errors(settings)), None)

    def program_says(settings):
        path = folder / f"{threading.get_ident()}.json"
        path.write_text(json.dumps(settings))
        r = baton("config", "check", "--values-only", "--config", str(path))
        assert (r.returncode, r.stdout) in ((0, "good\n"), (2, "")), r.stderr
        return None if r.returncode == 0 else r.stderr.strip()

    return schema_says, program_says


def test_the_schema_alone_is_that_of_the_settings(schemas):
    assert json.loads(baton("config", "schema").stdout) == schemas["settings"]
    assert schemas["settings"]["$defs"]["replica_config"].items() <= schemas["replica_config"].items()
    assert schemas["settings"]["$defs"]["launch"].items() <= schemas["launch"].items()
    assert baton("config", "schema", "nonsense").returncode == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_examples_are_good(path, schemas):
    assert len(EXAMPLES) >= 3
    settings = json.loads(path.read_text())
    validator(schemas["settings"]).validate(settings)
    for launch in settings["deployments"]:
        validator(schemas["launch"]).validate(launch)
        validator(schemas["replica_config"]).validate(launch["replica_config"])
    r = baton("config", "check", "--values-only", "--config", str(path))
    assert r.stdout == "good\n", r.stderr


def test_every_setting_is_described_with_its_default(schemas):
    shown = json.loads(baton("config", "show").stdout)
    properties = schemas["settings"]["properties"]
    assert set(properties) - {"$schema"} == set(shown)
    validate = validator(schemas["settings"])
    for name, schema in properties.items():
        assert schema["description"]
        if "default" in schema:
            validate.validate({name: schema["default"]})
            assert schema["default"] == shown[name], name
    assert schemas["settings"]["additionalProperties"] is False


def test_what_is_shown_can_be_checked_again(tmp_path):
    path = tmp_path / "shown.json"
    path.write_text(baton("config", "show").stdout)
    r = baton("config", "check", "--config", str(path))
    assert (r.returncode, r.stdout) == (0, "good\n"), r.stderr
    # Where there are secrets it is no configuration: nobody must start a server whose key everybody knows.
    path.write_text(json.dumps({"api_keys": ["a-key"], "link_secret": "a-secret-of-the-links"}))
    path.write_text(baton("config", "show", "--config", str(path)).stdout)
    r = baton("config", "check", "--config", str(path))
    assert r.returncode == 2 and "/api_keys[0] is a secret that `config show` does not show" in r.stderr


@pytest.mark.parametrize("variable, value", [("BATON_DOWNLOAD_HUB", "x"), ("HF_ENDPOINT", "no address"), ("BATON_HUB_CA_FILE", "/no/such.pem")])
def test_hub_settings_of_the_environment_are_judged(variable, value):
    r = subprocess.run([harness.BINARY, "config", "check"], capture_output=True, text=True, env={**ENVIRONMENT, variable: value})
    assert r.returncode == 2 and variable in r.stderr, r.stderr


def test_hub_settings_of_the_file_are_judged(tmp_path):
    path = tmp_path / "settings.json"
    for key, value in (("hub_endpoint", "no address"), ("hub_ca_file", "/no/such.pem")):
        path.write_text(json.dumps({key: value}))
        r = baton("config", "check", "--config", str(path))
        assert r.returncode == 2 and key in r.stderr and value in r.stderr, r.stderr


def test_every_field_of_a_launch_is_in_the_schema_and_in_the_documentation(schemas):
    text = (ROOT / "docs/API.md").read_text()
    properties = schemas["launch"]["properties"]
    assert all(p["description"] for p in properties.values())
    untold = {"replica-config", "peft_model_config", "wait_ready", "fault"}  # other spellings, and what says nothing or is for tests
    assert [name for name in set(properties) - untold if f"`{name}`" not in text] == []


# Values that some field takes and others do not.
POOL = [None, True, False, 0, 1, -1, 2, 64, 65, 65535, 65536, 1 << 20, (1 << 20) + 1, 1 << 32, (1 << 64) - 1, 1 << 64, 0.9, 1.5, "", " ", "x", "a b", "auto", "json", "debug", "LLM", "vllm",
        "modelscope", "HuggingFace", "/models", "0.0.0.0", "::", "::1", "10.0.0.1", "10.0.0.1:9998", "10.0.0.1:99999", ":99", "0123456789abcdef", "u-rep1", "a/b", "a//b", "../x",
        [], ["x"], ["a b"], [""], ["x", 5], [0], [-1], [1.5], {}, {"A": "1"}, {"LD_PRELOAD": "x"}, {"A B": "1"}, {"lora_list": []}, {"lora_list": [{}]}, [{}]]


def edges(schema):
    """Values at and beyond the limits that the schema names."""
    out = [v for v in schema.get("enum", []) + schema.get("examples", []) + [schema.get("const")] if v is not None]
    for key, beyond in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)):
        if key in schema:
            out += [schema[key], schema[key] + beyond]
    for part in schema.get("anyOf", []):
        out += edges(part)
    return out


def values_for(schema):
    seen = {}
    for v in POOL + edges(schema):
        seen.setdefault(json.dumps(v), v)
    return list(seen.values())


def disagreements(cases, judges):
    """Runs (name, settings) through both judges; what they judge differently, and the names by verdict."""
    schema_says, program_says = judges
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda case: program_says(case[1]), cases))
    wrong, good, bad = [], set(), set()
    for (name, settings), program in zip(cases, verdicts):
        schema = schema_says(settings)
        (bad if program else good).add(name)
        if (schema is None) != (program is None):
            wrong.append(f"{json.dumps(settings)}: schema: {schema or 'good'}; program: {program or 'good'}")
    return wrong, good, bad


def test_each_setting_is_judged_alike(schemas, judges):
    properties = {n: s for n, s in schemas["settings"]["properties"].items() if n not in ("$schema", "deployments")}
    cases = []
    for name, schema in properties.items():
        # A link's secret is needed with its address, and may come from elsewhere: how the two go together is told below.
        more = {"link_address": {"link_secret": "0123456789abcdef"}, "tls_certificate": {"tls_key": "k"}, "tls_key": {"tls_certificate": "c"}}.get(name, {})
        cases += [(name, {**more, name: v}) for v in values_for(schema)]
    cases += [("nonsense", {"nonsense": 1}), ("$schema", {"$schema": "https://example.org/s"}), ("$schema", {"$schema": 1})]
    for secret in ("0123456789abcdef", "0123456789abcde"):
        cases += [("link", {"link_address": "10.0.0.1:9998", "link_secret": secret}), ("link", {"link_address": "", "link_secret": secret}), ("link", {"link_secret": secret})]
    cases += [("whole", {"port": 8e3}), ("whole", {"port": 8000.0}), ("whole", {"port": 1e9}), ("whole", {"shutdown_timeout_ms": -0.0})]
    wrong, good, bad = disagreements(cases, judges)
    assert wrong == [], "\n" + "\n".join(wrong)
    assert good >= set(properties) and bad >= set(properties)


def test_each_field_of_a_start_up_deployment_is_judged_alike(schemas, judges):
    base = {"model_name": "m", "model_engine": "baton"}
    # How fields go together is not in the schema, but for the placement.
    left_out = {"replica_config", "replica-config"}
    cases = []
    for name, schema in schemas["launch"]["properties"].items():
        if name in left_out:
            continue
        cases += [(name, {"deployments": [{**base, name: v}]}) for v in values_for(schema)]
    cases += [(name, {"deployments": [{k: v for k, v in base.items() if k != name}]}) for name in base]
    cases += [("engine keyword of others", {"deployments": [{**base, "swap_space": [1]}]})]
    free = {n for n, s in schemas["launch"]["properties"].items() if set(s) == {"description"}}
    wrong, good, bad = disagreements(cases, judges)
    assert wrong == [], "\n" + "\n".join(wrong)
    names = set(schemas["launch"]["properties"]) - left_out
    assert good >= names and bad >= names - free


def entry(role="prefill", **device):
    return {"role": role, "devices": [{"worker_ip": "", **device}]}


def mutations(rows, rng):
    """The list with one part of it changed, at random."""
    rows = copy.deepcopy(rows)
    row = rng.choice(rows)
    device = row["devices"][0]
    target, names = rng.choice([(row, ["role", "replica_uid", "devices", "what"]), (device, ["worker_ip", "n_gpu", "gpu_idx", "what"])])
    name = rng.choice(names)
    if rng.random() < 0.15:
        target.pop(name, None)
    else:
        target[name] = rng.choice(["hybrid", "prefill", "decode", None, "", " ", "r0", "m-rank0", "u-rep1", "-rep1", "x -rep2 ", "auto", 0, 1, 2, -1, 0.5, True, [], [0], [1], [-1], [0, 1], [{"worker_ip": ""}], {}, "10.0.0.1:1"])
    return rows


def test_replica_configs_are_judged_alike(judges):
    rng = random.Random(5)
    good_ones = [[entry("prefill"), entry("decode")], [entry("hybrid", n_gpu=0)], [entry("prefill", n_gpu=1, gpu_idx=[0]), entry("decode", n_gpu="auto", gpu_idx=[1]), entry("decode", gpu_idx=None)],
                 [{"devices": [{"worker_ip": "10.0.0.1:5"}]}, entry("hybrid")]]
    lists = good_ones + [[], [entry("prefill")], [entry("decode")], [entry("prefill"), entry("decode"), entry("hybrid")], [entry("prefill"), entry("decode"), {"devices": [{"worker_ip": ""}]}], [5], [{}], None]
    lists += [mutations(rng.choice(good_ones), rng) for _ in range(300)]
    cases = [("list", {"deployments": [{"model_name": "m", "model_engine": "baton", "replica_config": rows}]}) for rows in lists]
    for more in ({"worker_ip": "10.0.0.1:5"}, {"gpu_idx": [0]}, {"gpu_idx": None}, {"n_gpu": 1}, {"n_gpu": "auto"}, {"n_gpu": None}, {"n_gpu": 0}):
        cases.append(("conflict", {"deployments": [{"model_name": "m", "model_engine": "baton", "replica_config": good_ones[0], **more}]}))
    wrong, good, bad = disagreements(cases, judges)
    assert wrong == [], "\n" + "\n".join(wrong)
    assert good == bad == {"list", "conflict"}


def test_a_key_that_stands_twice_is_refused(tmp_path):
    """A schema cannot say that: it sees the last one."""
    path = tmp_path / "c.json"
    for text, where in (('{"port": 1, "port": 1}', "/port"), ('{"deployments": [{"model_name": "m", "model_engine": "baton", "model_engine": "baton"}]}', "/deployments/model_engine")):
        path.write_text(text)
        r = baton("config", "check", "--config", str(path))
        assert r.returncode == 2 and f"'{where}' stands there twice" in r.stderr


def test_the_files_that_settings_name_are_checked_too(tmp_path):
    """What would stop the start is told, all of it at once; the values alone are judged where that is asked for."""
    path, users, broken = tmp_path / "c.json", tmp_path / "users.json", tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 60)
    launch = lambda name, model: {"model_name": name, "model_engine": "baton", "model_path": str(model)}  # noqa: E731

    def check(*args, **settings):
        path.write_text(json.dumps(settings))
        r = baton("config", "check", "--config", str(path), *args)
        assert (r.returncode, r.stdout) in ((0, "good\n"), (2, "")), r
        return r.stderr

    bad = {"tls_certificate": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem"), "auth_file": str(users), "model_root": str(tmp_path / "none"),
           "deployments": [launch("a", tmp_path / "no.gguf"), {"model_name": "by-name", "model_engine": "baton"}, launch("b", broken)]}
    lines = check(**bad).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["model_root", "TLS", "auth_file", "deployments[0]", "deployments[2]"], lines
    assert all("No such file or directory" in line for line in lines[1:3])
    assert check("--values-only", **bad) == ""
    users.write_text('{"auth_config": {}}')
    assert "/auth_config/secret_key" in check(auth_file=str(users))
    users.write_text("")
    assert "users.json: the file is empty" in check(auth_file=str(users))
    (tmp_path / "outside").mkdir()
    assert "outside" in check(model_root=str(tmp_path / "outside"), deployments=[launch("b", broken)])
    assert "broken.gguf" in check(deployments=[launch("b", broken)])
    doctor = baton("doctor", "--json", "--port", "0", "--config", str(path), "--state-dir", str(tmp_path / "s"), "--cache-dir", str(tmp_path / "k"))
    assert {f["what"]: f["state"] for f in json.loads(doctor.stdout)["findings"]}["deployments[0]"] == "bad"


def test_the_document_of_settings_is_current():
    r = baton("config", "docs")
    assert r.stdout == (ROOT / "docs/CONFIG.md").read_text(), "build/release/baton config docs >docs/CONFIG.md"
