"""The web page in a real browser: launch, watch, chat, terminate, log in; on a desk and on a phone, light and dark."""

import concurrent.futures
import json
import re
import shutil

import harness
import httpx
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
VIEWS = ["launch", "running", "chat", "cluster", "traffic"]
SCREENS = [(1440, 900, "light"), (1440, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
SLOW = 30_000 * harness.PATIENCE


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        b = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield b
        b.close()


@pytest.fixture
def tab(browser):
    """tab(width, height, scheme) → a page whose complaints, console errors and unhandled faults alike, fail the test."""
    contexts, complaints = [], []

    def new(width=1440, height=900, scheme="light", expected=()):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(SLOW)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: m.type in ("error", "warning") and not any(e in m.text for e in expected) and complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        return page

    yield new
    for c in contexts:
        c.close()
    assert complaints == []


@pytest.fixture(scope="module")
def bare():
    """A server without models."""
    with harness.Server() as server:
        yield server


def view(page, server, name):
    page.goto(f"{server.url}/#/{name}")
    page.wait_for_selector(f"main.view-{name} h1", state="attached")


def axe(page):
    return [(v["id"], [n["target"] for n in v["nodes"]]) for v in Axe().run(page).response["violations"]]


# ---- files ------------------------------------------------------------------------------------------------------------

def test_every_file_is_served_with_its_type_and_the_policy(bare):
    page = bare.http.get("/")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    names, seen = {"/"}, set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        r = bare.http.get(name)
        assert r.status_code == 200, name
        policy = r.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        names |= set(re.findall(r'"(/ui/[\w.]+)"', r.text)) | {f"/ui/{n}" for n in re.findall(r'from "\./([\w.]+)"', r.text)}
        again = bare.http.get(name, headers={"If-None-Match": r.headers["etag"]})
        assert again.status_code == 304 and again.content == b""
    assert len(seen) > 10
    assert bare.http.get("/ui/none.js").status_code == 404
    assert bare.http.get("/ui/..%2fapp.js").status_code in (400, 404)


def test_nothing_of_the_page_comes_from_elsewhere(bare):
    for name in ("/", "/ui/style.css", "/ui/app.js"):
        text = bare.http.get(name).text
        assert not re.findall(r"https?://(?!www\.w3\.org)", text)
        assert "<script>" not in text and " style=" not in text and "onclick=\"" not in text


# ---- launch, run, terminate -------------------------------------------------------------------------------------------

def test_a_model_is_launched_used_and_terminated(tab):
    with harness.Server() as server:
        page = tab()
        view(page, server, "launch")
        page.get_by_label("Path on the worker").fill(harness.MODEL)
        page.get_by_label("Model name").fill("smollm2-instruct")
        page.get_by_label("Served as (uid)").fill("web")
        roles = page.get_by_label(re.compile("^Role of replica"))
        playwright.expect(roles).to_have_count(2)  # 1P1D is the default

        # A wrong topology is said at once, in the server's words, and is not sent.
        roles.nth(1).select_option("prefill")
        wrong = "PD separation requires both prefill and decode replicas, without hybrid replicas"
        playwright.expect(page.locator(".placement > .error")).to_have_text(wrong)
        page.get_by_role("button", name="Launch", exact=True).click()
        assert server.http.get("/v1/models/instances").json() == []
        roles.nth(1).select_option("decode")
        playwright.expect(page.locator(".placement > .error")).to_be_hidden()
        page.get_by_label("Name of replica 0").fill("x-rep1")
        playwright.expect(page.locator(".row-error").first).to_contain_text("reserved internal replica")
        page.get_by_label("Name of replica 0").fill("first")

        page.get_by_text("Engine options").click()
        page.get_by_label("Context length").fill("2048")
        page.get_by_label("More keywords").fill("{")
        page.get_by_role("button", name="Launch", exact=True).click()
        playwright.expect(page.get_by_text("No JSON object")).to_be_visible()
        page.get_by_label("More keywords").fill('{"kv_cache_bytes": 268435456}')
        page.get_by_role("button", name="Launch", exact=True).click()
        launched = page.get_by_role("region", name="Launch of web")
        playwright.expect(launched).to_contain_text("Ready.", timeout=SLOW)
        rows = server.replicas("web")
        assert [r["role"] for r in rows] == ["prefill", "decode"] and rows[0]["replica_uid"] == "first"

        # Chat: streams, says what it took, stops.
        launched.get_by_role("link", name="Chat with it").click()
        playwright.expect(page.get_by_label("Model", exact=True)).to_have_value("web")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Message", exact=True).fill("What is the capital of France? Answer with one word.")
        page.keyboard.press("Enter")
        answer = page.get_by_role("article", name="Answer").first
        playwright.expect(answer).to_contain_text("Paris", timeout=SLOW)
        playwright.expect(answer).to_contain_text("first token")
        playwright.expect(answer).to_contain_text("tokens/s")
        server.settled("baton_requests_total", 1, outcome="ok")  # the page has the answer before the server counts it
        page.get_by_label("Tokens at most").fill("1500")
        page.get_by_label("Message", exact=True).fill("What is the capital of France?")
        # Whether the model ends by itself is a matter of rounding: here it may not.
        page.route("**/v1/chat/completions", lambda r: r.continue_(post_data=json.dumps({**r.request.post_data_json, "ignore_eos": True})))
        page.get_by_role("button", name="Send").click()
        second = page.get_by_role("article", name="Answer").nth(1)
        playwright.expect(second.locator(".text")).to_contain_text(re.compile(r"\S{3}"), timeout=SLOW)
        page.get_by_role("button", name="Stop").click()
        playwright.expect(second).to_contain_text("ended by you")
        page.unroute("**/v1/chat/completions")
        server.settled("baton_requests_total", 1, outcome="aborted")
        assert server.metric("baton_requests_total", outcome="ok") == 1
        # The talk is still there after a look at another view.
        page.get_by_role("link", name="Running").click()
        playwright.expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("link", name="Chat", exact=True).first.click()
        playwright.expect(page.get_by_role("article", name="Answer").first).to_contain_text("Paris")

        # Traffic: what the plots say moves under load.
        page.get_by_role("link", name="Traffic").click()
        tokens = page.locator("figure", has_text="Tokens per second").locator(".value").nth(1)
        playwright.expect(tokens).to_have_text("0")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            work = [pool.submit(httpx.post, server.url + "/v1/completions", timeout=SLOW,
                                json={"model": "web", "prompt": "Once upon a time", "max_tokens": 150, "ignore_eos": True}) for _ in range(8)]
            playwright.expect(tokens).to_have_text(re.compile("[1-9]"), timeout=SLOW)
            assert page.locator("figure", has_text="Tokens per second").locator("polyline").count() > 0
            assert all(w.result().status_code == 200 for w in work)
        # Every plot has lines of the roles that there are, with values; of the others none.
        plots = page.locator("figure")
        for i in range(plots.count()):
            plot = plots.nth(i)
            playwright.expect(plot.locator(".plot :is(polyline, circle)").first, plot.locator("h2").text_content()).to_be_attached()
        for title in ("Cache hits", "KV blocks in use", "Sequences in a step"):
            roles = page.locator("figure", has=page.get_by_role("heading", name=title, exact=True)).locator(".plot")
            for colour, there in (("c1", True), ("c2", True), ("c3", False)):
                assert (roles.locator(f":is(.line, .point).{colour}").count() > 0) == there, f"{title}: {colour}"

        # Terminate, after a question that can be declined.
        page.get_by_role("link", name="Running").click()
        page.get_by_role("button", name="Terminate").click()
        page.get_by_role("button", name="Keep it").click()
        playwright.expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("button", name="Terminate").click()
        page.get_by_role("dialog").get_by_role("button", name="Terminate").click()
        playwright.expect(page.get_by_text("No model is running.")).to_be_visible(timeout=SLOW)
        assert server.http.get("/v1/models").json()["data"] == []
        page.close()  # before the server, or its polling meets a closed port


def test_a_launch_that_fails_says_why(tab, bare, tmp_path):
    page = tab(expected=["400"])
    view(page, bare, "launch")
    page.get_by_role("button", name="Launch", exact=True).click()
    playwright.expect(page.get_by_text("A path is needed.")).to_be_visible()
    page.get_by_label("Path on the worker").fill(str(tmp_path / "none.gguf"))
    playwright.expect(page.get_by_label(re.compile("^Role of replica"))).to_have_count(2)
    page.get_by_role("button", name="Launch", exact=True).click()
    playwright.expect(page.get_by_role("alert").filter(has_text="none.gguf")).to_be_visible()


def test_a_launch_can_be_cancelled(tab, bare):
    page = tab()
    view(page, bare, "launch")
    page.get_by_label("Path on the worker").fill(harness.MODEL)
    page.get_by_label("Served as (uid)").fill("late")
    playwright.expect(page.get_by_label(re.compile("^Role of replica"))).to_have_count(2)
    page.get_by_role("button", name="Launch", exact=True).click()
    cancel = page.get_by_role("button", name="Cancel")
    launched = page.get_by_role("region", name="Launch of late")
    try:
        cancel.click(timeout=2000)
    except playwright.TimeoutError:  # it was ready before that
        playwright.expect(launched).to_contain_text("Ready.")
        bare.terminate("late")
    else:
        playwright.expect(launched).to_contain_text(re.compile("cancelled|gone|Ready"))
    harness.wait_for(lambda: bare.http.delete("/v1/models/late").status_code and bare.http.get("/v1/models").json()["data"] == [], 20, "it is gone")


def test_known_families_are_offered(tab, bare):
    page = tab()
    view(page, bare, "launch")
    page.get_by_label("Known family").check()
    page.get_by_label("Family", exact=True).select_option("qwen2.5-instruct")
    playwright.expect(page.get_by_label("Size (billions)")).to_contain_text("0.5")
    page.get_by_label("Size (billions)").select_option("0_5")
    playwright.expect(page.get_by_label("Quantization")).not_to_be_empty()
    page.get_by_text("As a command").click()
    playwright.expect(page.locator("pre code")).to_contain_text("baton launch -n qwen2.5-instruct -s 0_5")


# ---- looks, keyboard, accessibility -----------------------------------------------------------------------------------

@pytest.mark.parametrize("width,height,scheme", SCREENS)
def test_every_view_fits_and_is_accessible(tab, pd, width, height, scheme):
    page = tab(width, height, scheme)
    for name in VIEWS:
        view(page, pd, name)
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the screen"
        assert axe(page) == [], name
        for other in page.query_selector_all("details"):
            other.evaluate("d => { d.open = true; }")
        assert axe(page) == [], f"{name}, all opened"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 380
    assert light == (scheme == "light")


def test_the_keyboard_is_enough(tab, pd):
    page = tab()
    view(page, pd, "running")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert "Terminate" in reached and "Events" in reached
    page.get_by_role("button", name="Terminate").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    assert pd.http.get(f"/v1/models/{harness.UID}").status_code == 200


def test_colours_can_be_chosen_and_stay(tab, bare):
    page = tab(scheme="light")
    view(page, bare, "cluster")
    page.get_by_role("button", name="Colours: system. Change").click()
    page.get_by_role("button", name="Colours: light. Change").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert axe(page) == []


def test_text_of_a_model_is_never_markup(tab, pd):
    page = tab()
    view(page, pd, "chat")
    page.evaluate("""async () => {
      const { prose } = await import('/ui/prose.js');
      const box = document.createElement('div'); box.id = 'probe'; document.body.append(box);
      box.append(...prose('<img src=x onerror="window.hit=1"> **<b>x</b>** `<i>`\\n```html\\n<script>window.hit=1</script>\\n```\\nend'));
    }""")
    assert page.locator("#probe img, #probe script, #probe b, #probe i").count() == 0
    assert page.locator("#probe strong").text_content() == "<b>x</b>"
    assert "<script>" in page.locator("#probe pre").text_content()
    assert page.evaluate("window.hit") is None


# ---- keys -------------------------------------------------------------------------------------------------------------

def test_with_keys_the_page_asks_for_one(tab):
    key = "sk-page-test-key"
    with harness.Server(extra=(), env={"BATON_API_KEYS": key}, headers={"Authorization": f"Bearer {key}"}) as server:
        page = tab(expected=["401"])
        page.goto(server.url)
        playwright.expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert axe(page) == []
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Use the key").click()
        playwright.expect(page.get_by_role("alert")).to_contain_text("Could not validate credentials")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use the key").click()
        playwright.expect(page.get_by_role("heading", name="Launch a model")).to_be_visible()
        page.get_by_role("link", name="Cluster").click()
        playwright.expect(page.get_by_role("heading", name=re.compile("^Worker"))).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        playwright.expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.close()
