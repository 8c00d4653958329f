#!/usr/bin/env python3
"""Receives and runs the GPU suite that `scripts/gpu-check pack` made: the half of scripts/gpu-check for the machine with GPUs.

    python3 scripts/gpu_checks.py receive | list | run [CHECK ...]

A check takes one GPU to itself (timings, and what reads how much memory is free), or shares one with two others, or takes all GPUs alone.
With several GPUs those of one GPU run side by side. Needs Python alone; the parity checks torch and transformers.
"""

import contextlib
import dataclasses
import glob
import gzip
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACK = ROOT / "build/gpu-pack"
KEEP = pathlib.Path(os.environ.get("GPU_CHECK_FOLDER", "/var/tmp/baton-gpu-check"))
SUITE = KEEP / "suite"
LOGS = pathlib.Path(os.environ.get("OUT") or ROOT / "build/gpu-logs")
MODELS = pathlib.Path("/var/tmp/baton-models")
SECONDS = float(os.environ.get("GPU_CHECK_SECONDS", 530))  # for all checks together; what has not ended by then is stopped
SLOTS = 3  # checks that share one GPU


# ---- the pack ------------------------------------------------------------------------------------------------------


def read_index(path):
    """{"programs": bytes, "model": name, "parts": {name: sha256}}, or nothing where there is none or a damaged one."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def index():
    return read_index(KEEP / "index.json")


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def receive():
    """Keeps what lies in build/gpu-pack and unpacks what is whole; a part that is not what the index says is refused."""
    KEEP.mkdir(parents=True, exist_ok=True)
    new = PACK / "index.json"
    if new.exists() and not read_index(new):
        raise SystemExit(f"error: {new} is damaged: copy it again")
    if new.exists() and read_index(new) != index():
        for old in [*KEEP.glob("part.*"), KEEP / "index.json"]:
            old.unlink(missing_ok=True)
        shutil.rmtree(SUITE, ignore_errors=True)
        shutil.copy2(new, KEEP)
    known = index()
    if not known:
        raise SystemExit(f"error: there is no pack in {PACK} or {KEEP}: scripts/gpu-check pack makes one")
    for name, want in known["parts"].items():
        if (PACK / name).exists() and not (KEEP / name).exists():
            if digest(PACK / name) != want:
                raise SystemExit(f"error: {PACK / name} is not the part that the index names")
            shutil.copy2(PACK / name, KEEP)
    unpack(known)
    missing = [name for name in known["parts"] if not (KEEP / name).exists()]
    print(f"programs: {'there' if programs_there() else 'missing'}, model: {'there' if gguf() else 'missing'}"
          f"{'; still to come: ' + ' '.join(missing) if missing else ''}", flush=True)


def programs_there():
    return (SUITE / "unpacked").exists()


def gguf():
    """The test model, once all of it is here."""
    known = index()
    path = SUITE / known["model"] if known else None
    return path if path and path.exists() else None


class Parts:
    """The parts one behind the other, as a file to read from."""

    def __init__(self, files, skip):
        self.files, self.open, self.left = list(files), None, skip
        while self.left:
            self.left -= len(self.read(min(self.left, 1 << 20)))

    def read(self, n=-1):
        out = b""
        while n < 0 or len(out) < n:
            if self.open is None:
                if not self.files:
                    break
                self.open = open(self.files.pop(0), "rb")
            got = self.open.read(n - len(out) if n >= 0 else -1)
            if not got:
                self.open.close()
                self.open = None
            out += got
        return out


def unpack(known):
    """The programs stand before the model in the parts, so that they are usable before all of it has come."""
    here = []
    for name in known["parts"]:
        if not (KEEP / name).exists():
            break
        here.append(KEEP / name)
    if not programs_there() and sum(p.stat().st_size for p in here) >= known["programs"]:
        SUITE.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=lzma.open(Parts(here, 0)), mode="r|") as tar:
            tar.extractall(SUITE, filter="data")
        (SUITE / "unpacked").touch()
    if not gguf() and len(here) == len(known["parts"]):
        target = SUITE / known["model"]
        with gzip.open(Parts(here, known["programs"])) as source, open(f"{target}.part", "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        os.replace(f"{target}.part", target)


# ---- the checks ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Check:
    """`gpus`: "one" to itself, "share" one, "all" of them. `about`: seconds it takes, for the order; it is stopped after `limit`."""

    name: str
    group: str
    gpus: str
    about: int
    commands: object  # what to run, given the context
    limit: int = 75
    model: bool = False  # needs the test model


class Context:
    def __init__(self, gpus):
        self.gpus = gpus  # numbers as CUDA_VISIBLE_DEVICES takes them
        self.locks = {shape: threading.Lock() for shape in ("qwen3-0.6b", "llama-3.1-8b")}
        self.libraries = ":".join(filter(None, [str(SUITE / "lib"), *cuda_libraries(), os.environ.get("LD_LIBRARY_PATH")]))

    def random_model(self, shape="qwen3-0.6b"):
        """Random weights of a real size; GPU_CHECK_MODEL chooses another model in place of the small one."""
        given = os.environ.get("GPU_CHECK_MODEL")
        if given and shape == "qwen3-0.6b":
            return given
        with self.locks[shape]:
            subprocess.run([sys.executable, ROOT / "scripts/make_random_model.py", shape, MODELS / shape], check=True)
        return str(MODELS / shape)

    def environment(self, gpus):
        return {**os.environ, "LD_LIBRARY_PATH": self.libraries, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "PYTHONUNBUFFERED": "1",
                "BATON_CUDA_MODULE": str(SUITE / "libbaton_cuda.so")}


def cuda_libraries():
    """The toolkit's, or those of Python packages."""
    found = sorted(glob.glob("/usr/local/cuda*/lib64"))
    for package in {p for entry in sys.path for p in glob.glob(f"{entry}/nvidia/*/lib")}:
        found.append(package)
    return found


def gtest(area, *more):
    return lambda c, gpus: [[SUITE / f"{area}_cuda_test", "--gtest_brief=1", *more]]


def memcheck(c, gpus):
    tool = shutil.which("compute-sanitizer") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))), None)
    if not tool:
        raise FileNotFoundError("compute-sanitizer is not here")
    watch = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "20"]
    return [[*watch, SUITE / "model_cuda_test", "--gtest_brief=1", "--gtest_filter=Families/Model.Mixed*/qwen3:Families/Model.Mixed*/smollm"],
            ["env", "BATON_TEST_REDUCED=1", *watch, SUITE / "model_cuda_test", "--gtest_brief=1", "--gtest_filter=Joined*"],
            ["env", "BATON_TEST_REDUCED=1", *watch, SUITE / "attention_cuda_test", "--gtest_brief=1", "--gtest_filter=QkvAttentionTest.*"],
            ["env", "BATON_TEST_SIZE_MAX=200000", *watch, SUITE / "linear_mlp_cuda_test", "--gtest_brief=1", "--gtest_filter=*Float64"]]


RACES = [  # test program, tests, and the largest matrix: as small as a watch over every access wants
    ("linear_rings", "*", 30000),
    ("linear_bulk", "*EveryBulkBf16", 30000),
    ("linear_mlp", "*Float64", 300000),  # of teams of blocks two
    ("linear", "*EveryCandidateBf16:*EveryDeterministicCandidate:Rows.NormAndSwiGlu", 30000),
    ("attention", "*PrefillAttentionTest.MatchesFloat64/*:*UnevenLengthsMatchFloat64:*ManySequences:RopeAppendTest.Match*:QkvAttentionTest.*", 30000),
    ("sampler", "*LongWay*:*EndsOfTheKeptSet*:*RowsDoNotDepend*:*Penalties*:*GraphServes*", 30000),
]


def need_sm90():
    if not (SUITE / "jitter_cuda_test").exists():
        raise FileNotFoundError("the pack was made without code for sm_90a")


def racecheck(c, gpus):
    """Of what the tests launch no kernel is left out. Last a ring without one of its barriers, which must be reported."""
    tool = SUITE / "sanitizer/compute-sanitizer"
    if not tool.exists():
        raise FileNotFoundError("the pack holds no compute-sanitizer")
    watch = [tool, "--tool", "racecheck", "--error-exitcode", "9", "--print-limit", "20"]
    need_sm90()
    return [*(["env", "BATON_TEST_REDUCED=1", f"BATON_TEST_SIZE_MAX={most}", *watch, SUITE / f"{area}_cuda_test", "--gtest_brief=1", f"--gtest_filter={tests}"]
              for area, tests, most in RACES),
            ["sh", "-c", '"$@" >/dev/null; [ $? = 9 ] || ! echo FAIL a missing barrier is not reported', "sh", "env", "BATON_JITTER_WITHOUT=2 3 4", *watch,
             SUITE / "jitter_cuda_test", "--gtest_filter=*RingForms*/Normed48"]]


def jitter(c, gpus):
    need_sm90()
    small = ["env", "BATON_TEST_REDUCED=1", "BATON_TEST_SIZE_MAX=30000", SUITE / "jitter_cuda_test", "--gtest_brief=1"]
    return [[*small, "--gtest_filter=*Attention*:*Faults*"], [*small, "--gtest_filter=Linear.Every*Ring:Linear.EverySlab:Linear.EveryBulkBf16:*RingForms*", "--gtest_repeat=10"],
            ["env", "BATON_TEST_REDUCED=1", "BATON_TEST_SIZE_MAX=300000", SUITE / "jitter_cuda_test", "--gtest_brief=1", "--gtest_filter=Mlp.*:AttentionOut.*"]]


def bench(*runs):
    return lambda c, gpus: [[SUITE / "baton", "bench", "engine", "--device", "cuda", "--tuning", *run] for run in runs]


def parity(*what):
    return lambda c, gpus: [[sys.executable, ROOT / "scripts/gpu_parity.py", "--dump", SUITE / "dump_logits", "--modes", "bf16,deterministic,fp16",
                             *(w() if callable(w) else w for w in what)]]


def serve(check, *more, model=None):
    """A check of scripts/gpu_serve.py, on the model or where it has not come on random weights; with two GPUs one a role."""
    return lambda c, gpus: [[sys.executable, ROOT / "scripts/gpu_serve.py", check, "--binary", SUITE / "baton", "--model",
                             (model and model()) or c.random_model(), "--gpus", "0,1" if len(gpus) > 1 else "0", *more]]


def start_8b(c, gpus):
    return serve("start", "--model-8b", c.random_model("llama-3.1-8b"))(c, gpus)


def load(c, gpus):
    """Requests in numbers: saturated, a few a second, and 16 streams."""
    c.random_model()
    return [[sys.executable, ROOT / "scripts/gpu_workloads.py", "--binary", SUITE / "baton", "--models", MODELS, "--time", "0.8", "--only", "256|16/s|16 streams", "one"]]


def small(shape):
    return ["--shape", shape, "--contexts", "1024", "--prompts", "1024,4096"]


CHECKS = [
    Check("device", "kernels", "one", 2, gtest("device")),
    Check("module", "kernels", "share", 3, gtest("module")),
    Check("attention", "kernels", "share", 22, gtest("attention")),
    Check("linear", "kernels", "share", 30, gtest("linear"), limit=120),
    Check("linear_rings", "kernels", "share", 15, gtest("linear_rings")),
    Check("linear_bulk", "kernels", "share", 25, gtest("linear_bulk")),
    Check("linear_mlp", "kernels", "share", 3, gtest("linear_mlp")),
    Check("sampler", "kernels", "share", 12, gtest("sampler")),
    Check("model", "kernels", "share", 60, gtest("model"), limit=240),  # small steps, each of which waits for those that share the GPU
    Check("memcheck", "kernels", "share", 13, memcheck, limit=120),
    Check("racecheck", "kernels", "share", 90, racecheck, limit=180),
    Check("jitter", "kernels", "share", 30, jitter, limit=75),
    Check("movers", "kernels", "all", 27, gtest("movers"), limit=120),
    Check("nccl", "kernels", "all", 35, gtest("nccl"), limit=150),  # on one GPU, over a socket, twice as long
    Check("bench-0.6b", "kernels", "one", 9, bench(["--shape", "qwen3-0.6b"])),
    Check("bench-8b", "kernels", "one", 12, bench(["--shape", "llama-3.1-8b", "--prompts", "512,1024,4096"])),
    Check("bench-small", "kernels", "one", 11, bench(*map(small, ("qwen2.5-0.5b", "llama-3.2-1b", "smollm2-135m")))),
    Check("bench-smollm2", "kernels", "one", 3,
          lambda c, gpus: bench(["--model-path", gguf(), "--contexts", "1024", "--prompts", "1024"])(c, gpus), model=True),
    Check("parity-0.6b", "kernels", "share", 45, parity("qwen3-0.6b"), limit=120),
    Check("parity-0.5b", "kernels", "share", 42, parity("qwen2.5-0.5b"), limit=120),
    Check("parity-1b", "kernels", "share", 38, parity("llama-3.2-1b"), limit=120),
    Check("parity-8b", "kernels", "share", 72, parity("llama-3.1-8b"), limit=150),
    Check("smollm2", "kernels", "share", 14, parity("--gguf", gguf, "--oracle", ROOT / "tests/data/model/smollm2_greedy.json"), model=True),
    Check("quickstart", "serving", "one", 5,
          lambda c, gpus: [[ROOT / "scripts/quickstart", "--binary", SUITE / "baton", "--model", gguf(), "--port", str(9900 + int(gpus[0]))]], model=True),
    Check("pd-verify", "serving", "all", 7, serve("pd-verify", model=gguf)),
    Check("serve", "serving", "all", 21, serve("serve", model=gguf), limit=120),
    Check("errors", "serving", "one", 5, serve("errors")),
    Check("mixed", "serving", "all", 18, serve("mixed"), limit=120),
    Check("2p2d", "serving", "one", 17, serve("2p2d")),
    Check("gap", "serving", "all", 25, serve("gap"), limit=120),
    Check("snapshots", "serving", "one", 9, serve("snapshots")),
    Check("start", "serving", "one", 11, serve("start")),
    Check("start-8b", "serving", "one", 30, start_8b, limit=120),
    Check("load", "serving", "one", 20, load),
    Check("cycles", "serving", "one", 32, serve("cycles"), limit=120),
    Check("kill", "serving", "all", 35, serve("kill", "--tries", "5"), limit=120),
]


# ---- running -------------------------------------------------------------------------------------------------------


RUNNING = set()  # process groups of the checks


def stop(number, _):
    """Ends what runs: it would keep the GPU."""
    for group in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(128 + number)


@dataclasses.dataclass
class Result:
    check: Check
    status: str
    seconds: float
    gpus: list
    log: str = ""
    failed: bool = False


class Run:
    """Starts each check as soon as the GPUs that it takes are free: first those with one to themselves, then those that share, then the rest."""

    ORDER = {"one": 0, "share": 1, "all": 2}

    def __init__(self, context, checks):
        self.c, self.begin, self.results = context, time.monotonic(), []
        self.free = {gpu: SLOTS for gpu in context.gpus}
        self.waiting = sorted(checks, key=lambda k: (self.ORDER[k.gpus], -k.about))
        self.changed = threading.Condition()
        self.log = LOGS / "gpu-check.log"  # one file, which grows as checks end
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")

    def left(self):
        return SECONDS - (time.monotonic() - self.begin)

    def take(self, check):
        """The GPUs that a check runs on, where they are free."""
        if check.gpus == "all":
            return list(self.free) if all(n == SLOTS for n in self.free.values()) else None
        need = SLOTS if check.gpus == "one" else 1
        best = max(self.free, key=self.free.get)
        return [best] if self.free[best] >= need else None

    def run(self):
        running = []
        with self.changed:
            while self.waiting or running:
                gpus = self.take(self.waiting[0]) if self.waiting else None
                if gpus is None:
                    self.changed.wait()
                    continue
                check = self.waiting.pop(0)
                running.append(check)
                self.hold(check, gpus, 1)
                threading.Thread(target=self.work, args=(check, gpus, running)).start()
        return self.results

    def hold(self, check, gpus, sign):
        for gpu in gpus:
            self.free[gpu] -= sign * (1 if check.gpus == "share" else SLOTS)

    def work(self, check, gpus, running):
        result = self.one(check, gpus)
        with self.changed:
            self.hold(check, gpus, -1)
            running.remove(check)
            self.report(result)
            self.changed.notify()

    def one(self, check, gpus):
        begin, path = time.monotonic(), KEEP / "logs" / f"{check.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        status = self.why_not(check)
        failed = False
        if not status:
            try:
                with open(path, "wb") as log:
                    status = next((s for s in (self.command(command, check, gpus, begin, log) for command in check.commands(self.c, gpus)) if s), "passed")
                failed = status != "passed"
            except FileNotFoundError as e:
                status = f"not run: {e}"
            except Exception as e:  # noqa: BLE001
                status, failed = f"FAILED: {type(e).__name__}: {e}", True
        text = path.read_text(errors="replace") if path.exists() and not status.startswith("not run") else ""
        ran, skipped = (sum(map(int, re.findall(rf"^\[ *{word} *\] (\d+) test", text, re.MULTILINE))) for word in ("PASSED", "SKIPPED"))
        if status == "passed" and skipped > ran:
            status, failed = "FAILED: skipped", True
        return Result(check, status, time.monotonic() - begin, gpus, text, failed)

    def why_not(self, check):
        if check.model and not gguf():
            return "not run: the test model has not come"
        return "not run: no time left" if self.left() < 2 else ""

    def command(self, command, check, gpus, begin, log):
        """Nothing where it went well."""
        limit = min(check.limit - (time.monotonic() - begin), self.left())
        process = subprocess.Popen([str(a) for a in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.c.environment(gpus), cwd=ROOT,
                                   start_new_session=True)
        RUNNING.add(process.pid)
        try:
            code = process.wait(max(1, limit))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"TIMED OUT after {limit:.0f} s"
        finally:
            RUNNING.discard(process.pid)
        return f"FAILED ({code})" if code else None

    def report(self, r):
        self.results.append(r)
        with open(self.log, "a") as log:
            log.write(f"##### {r.check.name}: {r.status}, {r.seconds:.1f} s, GPU {' '.join(r.gpus)}\n{r.log}\n")
        print(f"== {time.monotonic() - self.begin:5.1f} s: {r.check.name} {r.status}", flush=True)
        shown = figures(r.log)
        if r.failed:
            shown += [line for line in r.log.splitlines()[-8:] if line not in shown]
        for line in shown:
            print("   " + line[:180], flush=True)


FIGURES = re.compile(r"^(weights|cuda |decode|prefill|(qwen|llama)\S+ +(bf16|det|fp16)|0\.6b  hybrid .*client|bf16:.*prompts,|deterministic:.*prompts,|fp16:.*prompts,|FAIL|ok  |"
                     r" +(batch|hybrid|prefill and)|\[ +FAILED)")


def figures(text):
    """What a benchmark or comparison is for."""
    return [line for line in text.splitlines() if FIGURES.match(line)]


def summary(text):
    """The most telling words of a log, for the table."""
    parts = []
    for pattern in (r"^\[ *(?:PASSED|FAILED|SKIPPED) *\] *\d.*", r"(?:ERROR|RACECHECK) SUMMARY: \d+ \w+", r"^\d+ checks failed", r"^parity: .*", r"replica on \S+ (\([CG]PU\))"):
        parts += [re.sub(r"\s+", " ", m) for m in re.findall(pattern, text, re.MULTILINE)[:2]]
    steps = re.findall(r"^decode +(\d+) +1024 +([\d.]+)", text, re.MULTILINE)
    if steps:
        parts.append("decode at 1k, ms: " + ", ".join(f"{batch}: {ms}" for batch, ms in steps))
    loads = dict(re.findall(r"^0\.6b +hybrid +(\S.*?) +512/128 +([\d.]+ +\d+ +[\d.]+ +[\d.]+ +[\d.]+) ", text, re.MULTILINE))
    for name, (rate, _, ttft, ttft99, tpot) in ((n, v.split()) for n, v in loads.items()):
        parts.append(f"{name}: {rate}/s, TTFT {ttft}/{ttft99}, TPOT {tpot} ms;")
    checked = len(re.findall(r"^ok  ", text, re.MULTILINE))
    return (f"{checked} held, " if checked else "") + " ".join(parts)


def run(names):
    receive()
    if not programs_there():
        raise SystemExit("error: the programs have not come yet")
    known = {check.name: check for check in CHECKS}
    groups = {"all": list(known), **{g: [n for n in known if known[n].group == g] for g in ("kernels", "serving")}}
    wanted = [n for name in names or ["all"] for n in groups.get(name, [name])]
    unknown = [n for n in wanted if n not in known]
    if unknown:
        raise SystemExit(f"error: no check is called {unknown[0]}; there are: {' '.join(known)}")
    gpus = visible_gpus()
    begin = time.monotonic()
    results = Run(Context(gpus), [known[n] for n in dict.fromkeys(wanted)]).run()
    lines = [f"{r.check.name:14} {r.status.split(':')[0]:14} {r.seconds:6.1f} s  GPU {','.join(r.gpus):4} "
             f"{summary(r.log) if r.log else r.status.partition(': ')[2]}"[:170] for r in sorted(results, key=lambda r: list(known).index(r.check.name))]
    asked = {n for n in names if n in known}  # by its own name: then it must run
    bad = sum(r.failed or (r.check.name in asked and r.status != "passed") for r in results)
    passed = sum(r.status == "passed" for r in results)
    lines.append(f"{len(results)} checks on {len(gpus)} GPUs in {time.monotonic() - begin:.0f} s: {passed} passed, {bad} failed, {len(results) - passed - bad} not run")
    with open(LOGS / "gpu-check.log", "a") as log:
        log.write("\n".join(["##### table", *lines]) + "\n")
    print("\n".join(lines))
    return 1 if bad else 0


def visible_gpus():
    done = subprocess.run(["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True) \
        if shutil.which("nvidia-smi") else None
    if not done or done.returncode or not done.stdout.strip():
        raise SystemExit("error: nvidia-smi shows no GPU here")
    print(done.stdout.strip(), flush=True)
    there = [line.split(",")[0] for line in done.stdout.splitlines()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [g for g in visible.split(",") if g in there] if visible else there


def main():
    verb, *rest = sys.argv[1:] or [""]
    if verb == "receive":
        return receive()
    if verb == "list":
        print("\n".join(f"{c.name:14} {c.group:8} {'one GPU' if c.gpus == 'one' else 'a third of a GPU' if c.gpus == 'share' else 'all GPUs'}, about {c.about} s"
                        f"{', needs the test model' if c.model else ''}" for c in CHECKS))
        return 0
    if verb == "run":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        return run(rest)
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
