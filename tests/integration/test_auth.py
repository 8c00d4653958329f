"""Users, keys and tokens of an auth file in Xinference's format: which route asks for what, and how that is told."""

import base64
import hashlib
import json
import re
import signal
import time

import openai
import pytest
from harness import Server, wait_for
from xinference_client import RESTfulClient


def hashed(password):
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 1000)
    return "pbkdf2_sha256$1000$salt$" + base64.b64encode(digest).decode()


def auth_file(path, users, minutes=30):
    path.write_text(json.dumps({"auth_config": {"algorithm": "HS256", "secret_key": "09d25e094faa6ca2556c818166b7a956", "token_expire_in_minutes": minutes},
                                "user_config": users}))


ANN = {"username": "ann", "password": "secret1", "permissions": ["admin"], "api_keys": ["sk-72tkvudyGLPMi"]}
BOB = {"username": "bob", "password": hashed("secret2"), "permissions": ["models:list", "models:read"], "api_keys": ["sk-35tkasdyGLYMy"]}
EVE = {"username": "eve", "password": "secret3", "permissions": ["models:start", "models:list"]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory, tiny_model):
    path = tmp_path_factory.mktemp("auth") / "auth.json"
    auth_file(path, [ANN, BOB, EVE])
    env = {"BATON_AUTH_FILE": str(path), "BATON_API_KEYS": "root-key", "BATON_INFERENCE_API_KEYS": "user-key", "BATON_AUTH_FAILURES_MAX": "0"}
    with Server(env=env, headers={"Authorization": "Bearer root-key"}) as server:
        server.auth_path = path
        server.launch("hybrid", model_path=str(tiny_model), max_model_len=512, kv_cache_bytes=16 << 20)
        yield server


def token(server, user, password):
    r = server.http.post("/token", json={"username": user, "password": password})
    assert r.status_code == 200, r.text
    assert r.json()["token_type"] == "bearer"
    return r.json()


def ask(server, key, method="GET", path="/v1/models", **keys):
    return server.http.request(method, path, headers={"Authorization": f"Bearer {key}"} if key else {"Authorization": ""}, **keys)


def test_what_is_open_and_what_is_not(secured):
    assert secured.http.get("/v1/cluster/auth", headers={"Authorization": ""}).json() == {"auth": True}
    for path in ("/health", "/ready", "/status", "/v1/address", "/v1/cluster/auth", "/v1/cluster/ui_config"):
        assert ask(secured, "", path=path).status_code == 200, path
    for path in ("/v1/models", "/v1/workers", "/v1/supervisor", "/metrics", "/v1/cluster/info", "/v1/models/instances", "/nope"):
        for key in ("", "wrong", "sk-", "root-key2"):
            r = ask(secured, key, path=path)
            assert r.status_code == 401 and r.headers["www-authenticate"] == "Bearer", path
            assert r.json()["detail"] == "Could not validate credentials"
            assert r.json()["error"]["type"] == "authentication_error" and r.json()["error"]["code"] == "invalid_api_key"


def test_keys_list_and_use_models_and_nothing_else(secured):
    chat = {"model": "m", "prompt": "a", "max_tokens": 1}
    for key in ("sk-72tkvudyGLPMi", "sk-35tkasdyGLYMy", "user-key"):
        assert ask(secured, key).status_code == 200
        assert ask(secured, key, "POST", "/v1/completions", json=chat).status_code == 200
        for method, path in (("POST", "/v1/models"), ("DELETE", "/v1/models/m"), ("GET", "/v1/workers"), ("DELETE", "/v1/clusters")):
            r = ask(secured, key, method, path, **({"json": {}} if method == "POST" else {}))
            assert r.status_code == 403
            assert r.json()["detail"] == ("Not enough permissions" if key == "user-key" else "API keys can only access model query and inference endpoints")
    assert ask(secured, "root-key", path="/v1/workers").status_code == 200


def test_tokens_have_their_users_rights(secured):
    admin = token(secured, "ann", "secret1")["access_token"]
    assert ask(secured, admin, path="/v1/workers").status_code == 200
    bob = token(secured, "bob", "secret2")["access_token"]
    assert ask(secured, bob).status_code == 200
    r = ask(secured, bob, "DELETE", "/v1/models/m")
    assert r.status_code == 403 and r.json()["detail"] == "Not enough permissions"
    eve = token(secured, "eve", "secret3")["access_token"]
    assert ask(secured, eve, "POST", "/v1/models", json={"model_name": ""}).status_code == 400
    assert ask(secured, eve, "POST", "/v1/completions", json={"model": "m", "prompt": "a"}).status_code == 403
    assert ask(secured, eve, "DELETE", "/v1/models/m").status_code == 403


def test_logins(secured):
    for user, password in (("ann", "secret2"), ("nobody", "secret1"), ("bob", BOB["password"])):
        r = secured.http.post("/token", json={"username": user, "password": password})
        assert (r.status_code, r.json()["detail"]) == (401, "Incorrect username or password")
    assert secured.http.post("/token", json={"username": "ann"}).status_code == 400
    tokens = token(secured, "ann", "secret1")
    again = secured.http.post("/token/refresh", json={"refresh_token": tokens["refresh_token"]}).json()
    assert ask(secured, again["access_token"], path="/v1/workers").status_code == 200
    assert ask(secured, tokens["refresh_token"]).status_code == 401
    assert secured.http.post("/token/refresh", json={"refresh_token": tokens["access_token"]}).status_code == 401


def test_the_xinference_client_logs_in_and_openai_takes_a_key(secured):
    client = RESTfulClient(secured.url)
    with pytest.raises(RuntimeError, match="Could not validate credentials"):
        client.list_models()
    client.login("ann", "secret1")
    assert list(client.list_models()) == ["m"]
    assert client.get_workers_info()[0]["work-ip"]
    keyed = RESTfulClient(secured.url, api_key="sk-35tkasdyGLYMy")
    assert keyed.get_model("m").generate("a", {"max_tokens": 2})["usage"]["completion_tokens"] >= 1
    with pytest.raises(RuntimeError, match="API keys can only access model query and inference endpoints"):
        keyed.terminate_model("m")
    sdk = openai.OpenAI(base_url=secured.url + "/v1", api_key="sk-72tkvudyGLPMi")
    assert [m.id for m in sdk.models.list()] == ["m"]
    assert sdk.completions.create(model="m", prompt="a", max_tokens=2).choices[0].finish_reason
    with pytest.raises(openai.AuthenticationError, match="Could not validate credentials"):
        openai.OpenAI(base_url=secured.url + "/v1", api_key="wrong").models.list()
    client.close()
    keyed.close()


def test_keys_count_in_the_metrics(secured):
    assert secured.metric("xinference:api_keys_active_total") == 2
    assert secured.metric("xinference:api_key_requests_total") > 0
    done = secured.metric("xinference:api_key_request_duration_seconds_count")
    begun = time.monotonic()
    assert ask(secured, "sk-35tkasdyGLYMy", "POST", "/v1/completions", json={"model": "m", "prompt": "a", "max_tokens": 4}).status_code == 200
    assert ask(secured, "user-key").status_code == 200  # no key of the file
    secured.settled("xinference:api_key_request_duration_seconds_count", done + 1)
    assert 0 <= secured.metric("xinference:api_key_request_duration_seconds_sum") < 60 + time.monotonic() - begun
    assert secured.metric("xinference:api_key_request_duration_seconds_bucket", le="+Inf") == done + 1
    for name in ("api_keys_expired_total", "banned_ips_total", "banned_keys_total"):
        assert secured.metrics()[f"xinference:{name}"] == [({}, 0.0)], name


def test_the_file_is_read_again_on_sighup(secured):
    old = token(secured, "bob", "secret2")["access_token"]
    auth_file(secured.auth_path, [ANN, {**EVE, "api_keys": ["sk-new"]}])
    secured.process.send_signal(signal.SIGHUP)
    wait_for(lambda: ask(secured, "sk-new").status_code == 200, 5, "the new key is known")
    assert ask(secured, "sk-35tkasdyGLYMy").status_code == 401
    assert ask(secured, old).status_code == 401, "a user that is gone has no token any more"
    secured.auth_path.write_text("{")
    secured.process.send_signal(signal.SIGHUP)
    secured.awaited("auth.reload_failed")
    wait_for(lambda: re.search(r'refused="?auth_file', (secured.lines("settings.reloaded") or [""])[-1]), 5, "and told where the reload ends")
    assert ask(secured, "sk-new").status_code == 200


def test_no_secret_is_in_the_log(secured):
    log = secured.log()
    for secret in ("secret1", "secret3", "sk-72tkvudyGLPMi", "sk-new", "root-key", "user-key", "09d25e094faa6ca2556c"):
        assert secret not in log


def test_without_a_file_there_is_nobody_to_log_in(pd):
    assert pd.http.get("/v1/cluster/auth").json() == {"auth": False}
    r = pd.http.post("/token", json={"username": "ann", "password": "secret1"})
    assert r.status_code == 400 and "no auth file" in r.json()["detail"]
    client = RESTfulClient(pd.url, api_key="anything")
    client.login("ann", "secret1")  # asks for nothing
    assert list(client.list_models()) == ["m"]
    client.close()


def test_a_wrong_file_is_told_at_the_start(tmp_path):
    auth_file(tmp_path / "a.json", [{**ANN, "permissions": ["root"]}])
    with pytest.raises(AssertionError, match="/user_config/0/permissions/0 is not a permission: 'root'"):
        Server(env={"BATON_AUTH_FILE": str(tmp_path / "a.json")})


def test_who_guesses_keys_is_banned_for_a_while(tmp_path):
    auth_file(tmp_path / "a.json", [{**ANN, "api_keys": ["sk-good", {"key": "sk-old", "expires_at": "2020-01-01T00:00:00Z"}, {"key": "sk-off", "enabled": False}]}])
    env = {"BATON_AUTH_FILE": str(tmp_path / "a.json"), "BATON_API_KEYS": "root-key", "BATON_AUTH_FAILURES_MAX": "4", "BATON_AUTH_BAN_SECONDS": "2"}
    with Server(env=env, headers={"Authorization": "Bearer root-key"}) as server:
        for key, detail in (("sk-old", "API key has expired"), ("sk-off", "API key is disabled")):
            r = ask(server, key)
            assert (r.status_code, r.json()["detail"], r.headers["www-authenticate"]) == (401, detail, "Bearer")
        assert server.metric("xinference:api_keys_expired_total") == 1 and server.metric("xinference:api_keys_active_total") == 1
        assert [ask(server, "sk-off").status_code for _ in range(4)] == [401] * 3 + [429]
        assert server.metric("xinference:banned_keys_total") == 1
        assert ask(server, "sk-good").status_code == 200
        assert [ask(server, f"sk-guess{i}").status_code for i in range(5)] == [401] * 4 + [429]
        r = ask(server, "sk-good")
        assert r.status_code == 429 and r.json()["detail"] == "Too many failed attempts. IP temporarily banned."
        assert 1 <= int(r.headers["retry-after"]) <= 2 and r.json()["error"]["type"] == "rate_limit_error"
        assert server.metric("xinference:banned_ips_total") == 1  # the operator's own key is never banned
        assert server.awaited("auth.address_banned", remote="127.0.0.1")
        wait_for(lambda: ask(server, "sk-good").status_code == 200, 10, "the ban ends")
        assert server.metric("xinference:banned_ips_total") == 0


def test_guesses_are_slowed_down(tmp_path):
    auth_file(tmp_path / "a.json", [ANN])
    with Server(env={"BATON_AUTH_FILE": str(tmp_path / "a.json"), "BATON_API_KEYS": "root-key"}, headers={"Authorization": "Bearer root-key"}) as server:
        statuses = [server.http.post("/token", json={"username": "ann", "password": str(i)}).status_code for i in range(14)]
        assert statuses == [401] * 10 + [429] * 4
        r = server.http.post("/token", json={"username": "ann", "password": "secret1"})
        left = int(r.headers["retry-after"])
        assert r.status_code == 429 and 30 < left <= 60 and f"in {left} s" in r.json()["detail"]
        begun = time.monotonic()
        assert server.http.get("/health").status_code == 200 and time.monotonic() - begun < 5
