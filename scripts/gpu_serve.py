#!/usr/bin/env python3
"""Serves a model on GPUs through the whole program and checks what a client sees. Needs Python alone.

    python3 scripts/gpu_serve.py [CHECK ...] --binary PATH/baton --model PATH [--gpus 0,1] [--movers cuda_ipc,nccl] [--quick]

Checks (default: serve):
  serve      a hybrid replica gives the same texts alone and in a crowd, a prefill and a decode replica those of the hybrid one; the fast
             mode is timed; aborted streams free their blocks; a launch that does not fit names bytes; memory is back
  pd-verify  the verification test of prefill/decode separation (scripts/pd_verify.py), with each mover
  mixed      1,000 mixed requests, 32 at once: 1P1D gives the hybrid's answers; in the fast mode first differences are near ties
  gap        token 1 to token 2 beside the latency between later tokens, alone and beside streams, with each mover
  2p2d       the same requests on two prefill and two decode replicas, every hand-off verified, every pair used
  kill       SIGKILL of prefill and decode replicas in mid-transfer: survivors serve, no wrong answer, everything comes back
  cycles     launch and terminate 20 times: GPU memory, processes and descriptors come back
  start      from the start of the process to the first streamed token
  snapshots  hybrids with enable_xavier: one reads what another computed, and resumes what another began
  errors     out of memory, an index out of range, no GPU, no driver, an old driver: what the error says

--gpus names those of prefill and decode; with one number they share it. The exit code is 1 where a check fails.
"""

import argparse
import os
import sys
import time
import traceback

import pd_verify
import serve_basic
import serve_faults
import serve_gap
import serve_mixed
from serving import Report, Server, with_chat_template

CHECKS = {
    "serve": serve_basic.check_serve,
    "pd-verify": lambda ctx: ctx.verify(),
    "mixed": serve_mixed.check_mixed,
    "gap": serve_gap.check_gap,
    "2p2d": serve_mixed.check_2p2d,
    "kill": serve_faults.check_kill,
    "cycles": serve_faults.check_cycles,
    "start": serve_faults.check_start,
    "snapshots": serve_mixed.check_snapshots,
    "errors": serve_faults.check_errors,
}


class Context:
    """What the checks share: one server, the model, where the roles go, what earlier checks made."""

    def __init__(self, o):
        self.binary, self.quick, self.report, self.env = o.binary, o.quick, Report(), {"BATON_ALLOW_FAULT_HOOKS": "true"}
        gpus = [None if g == "cpu" else int(g) for g in o.gpus.split(",")]
        self.prefill, self.decode = gpus[0], gpus[-1]
        self.pair = [("prefill", self.prefill), ("decode", self.decode)]
        self.movers, self.mover = o.movers.split(","), o.mover
        self.kill_tokens, self.pace_us = o.kill_tokens, o.pace_us
        self.requests, self.longest, self.tries, self.cycles, self.each = o.requests, o.longest, o.tries, o.cycles, o.each
        self.server = Server(o.binary, self.env)
        self.model = with_chat_template(o.model, self.server.folder.name)
        self.model_8b = o.model_8b
        self.real = "fake" not in os.path.basename(o.binary)

    def run(self, name):
        """One check; what it did not expect is a failure too, and the next one finds an empty server."""
        try:
            CHECKS[name](self)
        except Exception as e:  # noqa: BLE001
            traceback.print_exc(limit=-4)
            self.report.check(False, f"{name}: {type(e).__name__}: {e}")
            for model in self.server.get("/v1/models/instances"):
                self.server.terminate(model["model_uid"])

    def verify(self):
        settings = pd_verify.Settings({"GPU": "1", "MODEL_PATH": self.model, "MODEL_NAME": "verified", "MODEL_SIZE": "0_6",
                                       "MOVERS": ",".join(self.movers)})
        pd_verify.verify(self.binary, self.report, settings, [self.prefill, self.decode])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--model-8b", help="start: this model of 8B instead, with its bar")
    parser.add_argument("--gpus", default="0", help="of the prefill and the decode replica, e.g. 0,1; one number: they share it; cpu: to try kill without")
    parser.add_argument("--movers", default="cuda_ipc,nccl", help="of pd-verify, gap, kill and cycles")
    parser.add_argument("--mover", help="mixed, 2p2d: this mover, not what the replicas choose")
    parser.add_argument("--quick", action="store_true", help="serve: fewer and shorter texts")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=2000, help="prompt tokens of the mixed requests")
    parser.add_argument("--tries", type=int, default=16, help="kill: of each role and mover")
    parser.add_argument("--each", type=int, default=4, help="kill: replicas of each role")
    parser.add_argument("--kill-tokens", type=int, default=9400, help="kill: prompt of the transfer; 9400 are 1 GiB of Qwen3-0.6B's KV")
    parser.add_argument("--pace-us", type=int, default=400, help="kill: pause between two copies, of 1 MiB each, of a transfer")
    parser.add_argument("--cycles", type=int, default=20)
    o = parser.parse_args()
    checks = o.checks or ["serve"]
    unknown = [c for c in checks if c not in CHECKS]
    if unknown:
        parser.error(f"no check is called {unknown[0]}; there are: {', '.join(CHECKS)}")
    ctx = Context(o)
    took = []
    try:
        for name in checks:
            begin = time.monotonic()
            ctx.run(name)
            took.append(f"{name} {time.monotonic() - begin:.1f} s")
    finally:
        code = ctx.server.stop()
        ctx.report.check(code == 0, f"the server ended with {code}; {', '.join(took)}")
        if ctx.report.failures:
            print("\n".join(line[:300] for line in ctx.server.troubles()[-12:]))
    print(f"{len(ctx.report.failures)} checks failed")
    return 1 if ctx.report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
