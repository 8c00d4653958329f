#!/usr/bin/env python3
"""The verification test of prefill/decode separation on GPUs: one prefill and one decode replica, real processes, as a user launches them.

    BATON_TEST_PD_GPU=1 python3 scripts/pd_verify.py --binary PATH/baton [--movers cuda_ipc,nccl] [--gpus 0,1]

For each mover: launch with a replica_config, one GPU a role (both on one where only one is there, which is said), float16, no prefix
cache; chat streamed and not, repeated prompts, four requests at once; each request must show once as kv.staged by the prefill and once as
kv.loaded by the decode replica, over that mover; after terminate the model is not listed, its processes are gone and the GPUs' memory is
back. Where the package xinference-client is installed the launch goes through it as well.

Settings from the environment: BATON_TEST_PD_GPU (must be 1), BATON_TEST_PD_MODEL_PATH (else the SmolLM2 file of the cache),
BATON_TEST_PD_MODEL_NAME, BATON_TEST_PD_MODEL_SIZE, BATON_TEST_PD_MOVERS; the names XINFERENCE_TEST_PD_* mean the same.
Exit code: 0 good, 1 a check failed, 2 it could not run, with the reason.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import time

from serving import Report, Server, alive, gpu_memory, memory_back, wait_for, with_chat_template

CACHED_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PD_UID = "pd-verification"
QUESTIONS = ["What is the capital of France? Answer with one word.", "Name three colours.", "Write one sentence about the sea.",
             "Count from one to five."]


class CannotRun(Exception):
    """Why the test has nothing to run on."""


def from_environment(name):
    return os.environ.get("BATON_TEST_PD_" + name) or os.environ.get("XINFERENCE_TEST_PD_" + name)


def cached_model():
    """The test model in the folder where `baton` and the scripts keep downloads (docs/CONFIG.md)."""
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = os.environ.get("BATON_CACHE_DIR") or (cache and cache + "/baton") or (
        "/var/cache/baton" if os.geteuid() == 0 else os.environ.get("HOME", "/tmp") + "/.cache/baton")
    return os.environ.get("BATON_TEST_MODEL") or f"{folder}/models/{CACHED_MODEL}"


class Settings:
    """From `given`, else from the environment."""

    def __init__(self, given=None):
        def setting(name, default=None):
            return (given or {}).get(name) or from_environment(name) or default

        if setting("GPU") != "1":
            raise CannotRun("BATON_TEST_PD_GPU is not 1")
        self.path = setting("MODEL_PATH") or cached_model()
        self.name = setting("MODEL_NAME", "smollm2-instruct")
        size = setting("MODEL_SIZE", "0_135")
        self.size = int(size) if size.isdigit() else size
        self.movers = setting("MOVERS", "cuda_ipc,nccl").split(",")
        self.extra = {}  # further launch keys
        self.max_tokens = 32
        if not os.path.exists(self.path):
            raise CannotRun(f"no model: {self.path} is not there; set BATON_TEST_PD_MODEL_PATH")


def launch_keys(o, worker, gpus):
    """The launch of the specification's test, as its client sends it: every key, most of them null."""
    return dict(model_name=o.name, model_uid=PD_UID, model_engine="vLLM", model_type="LLM", model_size_in_billions=o.size,
                model_format="ggufv2" if o.path.endswith(".gguf") else "pytorch", quantization="none", replica=2, n_worker=1, n_gpu="auto",
                peft_model_config=None, request_limits=None, worker_ip=None, gpu_idx=None, model_path=o.path,
                replica_config=[{"role": role, "devices": [{"worker_ip": worker, "n_gpu": 1, "gpu_idx": [gpu]}]}
                                for role, gpu in zip(("prefill", "decode"), gpus)],
                dtype="float16", gpu_memory_utilization=0.5, max_model_len=2048, enable_prefix_caching=False)


class RawClient:
    """The control API without a package."""

    name = "HTTP"

    def __init__(self, server):
        self.server = server

    def launch(self, **keys):
        status, answer = self.server.call("POST", "/v1/models", keys)
        if status != 200:
            raise RuntimeError(f"{status} {answer}")
        return json.loads(answer)["model_uid"]

    def models(self):
        return [m["id"] for m in self.server.get("/v1/models")["data"]]

    def terminate(self, uid):
        status, answer = self.server.call("DELETE", f"/v1/models/{uid}")
        if status != 200:
            raise RuntimeError(f"{status} {answer}")


class PackageClient:
    """The same through the unmodified xinference-client."""

    name = "xinference-client"

    def __init__(self, server):
        from xinference_client import RESTfulClient

        self.client = RESTfulClient(f"http://127.0.0.1:{server.port}")

    def launch(self, **keys):
        return self.client.launch_model(**keys)

    def models(self):
        return list(self.client.list_models())

    def terminate(self, uid):
        self.client.terminate_model(uid)


def have_package():
    try:
        import xinference_client  # noqa: F401
    except ImportError:
        return False
    return True


class Verification:
    """One launch, its requests, its end."""

    def __init__(self, server, report, options, mover, gpus, client):
        self.server, self.report, self.o, self.mover, self.gpus, self.client = server, report, options, mover, gpus, client
        self.first_line = len(server.lines())
        self.ids = []

    def check(self, good, what):
        return self.report.check(good, f"{self.mover}: {what}")

    def run(self):
        memory = gpu_memory()
        begin = time.monotonic()
        try:
            uid = self.client.launch(**self.keys())
        except RuntimeError as e:
            return self.check(False, f"launch: {str(e)[:400]}")
        took = time.monotonic() - begin
        rows = self.server.replicas(PD_UID)
        pids = [r["pid"] for r in rows]
        where = [(r["role"], r["gpu_idx"]) for r in rows]
        self.check(uid == PD_UID and uid in self.client.models() and where == [("prefill", [self.gpus[0]]), ("decode", [self.gpus[1]])],
                   f"launched by {self.client.name} in {took:.1f} s: " + ", ".join(f"{role} on GPU {gpu}" for role, gpu in where))
        if self.channel():
            self.requests()
            self.evidence()
        self.client.terminate(uid)
        gone = uid not in self.client.models() and not any(alive(p) for p in pids)
        back, now = memory_back(memory)
        return self.check(gone and back, f"terminated, {'no process is left' if gone else 'the model or a process is left'}, "
                                         f"GPU memory {memory} MiB before, {now} after")

    def keys(self):
        keys = launch_keys(self.o, self.server.worker(), self.gpus)
        if self.mover != "auto":
            keys["mover"] = self.mover
        if self.mover == "nccl" and self.gpus[0] == self.gpus[1]:
            keys["fault"] = "nccl_one_gpu"
        return {**keys, **self.o.extra}

    def channel(self):
        """NCCL pairs in the background; until then extents would go over the link."""
        if self.mover != "nccl":
            return True
        begin = time.monotonic()
        ready = wait_for(lambda: {e["role"] for e in self.server.events("xavier.channel_ready", self.first_line)} == {"prefill", "decode"}, 30)
        return self.check(ready, f"the channel is ready {time.monotonic() - begin:.1f} s after the launch" if ready else
                          f"no channel within 30 s: {self.server.troubles()[-2:]}")

    def ask(self, question, stream=False):
        request = f"verify-{self.mover}-{self.client.name}-{len(self.ids)}"
        self.ids.append(request)
        return self.server.ask("chat", uid=PD_UID, request_id=request, max_tokens=self.o.max_tokens, temperature=0, stream=stream,
                               messages=[{"role": "user", "content": question}], chat_template_kwargs={"enable_thinking": False},
                               **({"stream_options": {"include_usage": True}} if stream else {}))

    def requests(self):
        whole, streamed = [self.ask(q) for q in QUESTIONS], [self.ask(q, stream=True) for q in QUESTIONS]
        errors = [a.error for a in whole + streamed if not a.whole()]
        tokens = [a.usage["completion_tokens"] for a in whole if a.usage]
        self.check(not errors and all(a.text for a in whole) and min(tokens) > 1, f"{len(whole)} answers of {tokens} tokens{'; ' + str(errors[0]) if errors else ''}")
        pieces = [len(a.times) for a in streamed]
        same = [a.text for a in streamed] == [a.text for a in whole]
        self.check(not errors and same and min(pieces) > 2, f"streamed in {pieces} pieces: {'the same texts' if same else 'other texts'}")
        again = [self.ask(QUESTIONS[0], stream=i % 2 == 1).text for i in range(4)]
        self.check(set(again) == {whole[0].text}, "a prompt asked four times more: " + ("the same text" if set(again) == {whole[0].text} else "other texts"))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            crowd = list(pool.map(lambda i: self.ask(QUESTIONS[i], stream=i % 2 == 1), range(4)))
        equal = sum(a.text == b.text for a, b in zip(crowd, whole))
        # Without `deterministic` a text may depend on the batch where two tokens nearly tie.
        self.check(all(a.whole() and a.text for a in crowd), f"four at once: all answered, {equal} with the text they have alone")

    def evidence(self):
        def found():
            staged = [e["req"] for e in self.server.events("kv.staged", self.first_line, model_uid=PD_UID, role="prefill")]
            loaded = [e["req"] for e in self.server.events("kv.loaded", self.first_line, model_uid=PD_UID, role="decode")
                      if self.mover in ("auto", e.get("mover"))]
            return [(staged.count(i), loaded.count(i)) for i in self.ids]

        wait_for(lambda: set(found()) == {(1, 1)}, 3)
        counts = found()
        wrong = [(i, c) for i, c in zip(self.ids, counts) if c != (1, 1)]
        self.check(not wrong, f"kv.staged and kv.loaded once for {counts.count((1, 1))} of {len(counts)} requests{'; not for ' + str(wrong[0]) if wrong else ''}")
        settled = wait_for(lambda: self.server.metric("baton_handoffs_total", model_uid=PD_UID) == len(self.ids), 3, 0.05)
        computed = self.server.metric("baton_prefill_tokens_total", model_uid=PD_UID, role="decode")
        fallbacks = self.server.metric("baton_fallbacks_total", model_uid=PD_UID)
        held = self.server.all_free(PD_UID)
        moved = self.server.metric("baton_handoff_bytes_total", model_uid=PD_UID)
        self.check(settled and computed == 0 and fallbacks == 0 and not held, f"{moved / 1e6:.1f} MB of KV handed over, the decode replica computed "
                   f"{computed:.0f} prompt tokens, {fallbacks:.0f} fallbacks, held afterwards: {held or 'nothing'}")


def verify(binary, report, settings, gpus=None, env=None):
    """All movers, one server. Raises CannotRun where there is no GPU."""
    server = Server(binary, env={"BATON_ALLOW_FAULT_HOOKS": "true", **(env or {})})
    try:
        there = server.gpus()
        if not there:
            raise CannotRun("the worker sees no GPU")
        gpus = gpus or there[:2]
        pair = (gpus[0], gpus[-1])
        report.note(f"{len(there)} GPUs: prefill on {pair[0]}, decode on {pair[1]}" if pair[0] != pair[1] else
                    f"one GPU: prefill and decode both on GPU {pair[0]}")
        settings.path = with_chat_template(settings.path, server.folder.name)
        for mover in settings.movers:
            Verification(server, report, settings, mover, pair, RawClient(server)).run()
        if have_package():
            Verification(server, report, settings, settings.movers[0], pair, PackageClient(server)).run()
        else:
            report.note("xinference-client is not installed: not launched through it")
    finally:
        code = server.stop()
        report.check(code == 0, f"the server ended with {code}")
        if report.failures:
            print("\n".join(line[:300] for line in server.troubles()[-10:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.environ.get("BATON_BINARY"))
    parser.add_argument("--gpus", help="of the prefill and the decode replica, e.g. 0,1; one number: they share it")
    parser.add_argument("--movers")
    o = parser.parse_args()
    report = Report()
    try:
        if not o.binary or not os.path.exists(o.binary):
            raise CannotRun("--binary, or BATON_BINARY, does not name the program")
        settings = Settings()
        if o.movers:
            settings.movers = o.movers.split(",")
        verify(o.binary, report, settings, [int(g) for g in o.gpus.split(",")] if o.gpus else None)
    except CannotRun as e:
        print(f"not run: {e}")
        return 2
    print(f"{len(report.failures)} checks failed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
