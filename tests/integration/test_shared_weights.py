"""Replicas of one model on one host read the packed weights from one memory file, whoever dies."""

import os
import re
import signal
from pathlib import Path

from harness import UID, Server, wait_for


def ways(server, how):
    return server.lines("replica.weights", how=how)


def images(server):
    """Kilobytes of weight images that processes of the server have mapped, and how many different files they are."""
    files, kilobytes = set(), 0
    for pid in server.tree():
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:
            continue
        for inode, rest in re.findall(r"^\S+ \S+ \S+ \S+ (\d+) +/memfd:baton-weights \(deleted\)\n((?:[A-Z][^\n]*\n)+)", text, re.M):
            files.add(inode)
            kilobytes += int(re.search(r"^Pss: +(\d+) kB", rest, re.M)[1])
    return kilobytes, len(files)


def answer(server, prompt="The lighthouse", **keys):
    return server.complete(prompt, ignore_eos=True, max_tokens=12, **keys)["choices"][0]["text"]


def filler_pid(server, seen=()):
    """The replica that is about to fill, held up by the fault hook."""
    def find():
        pids = [int(re.search(r" pid=(\d+)", line)[1]) for line in server.lines("replica.fault_planted")]
        new = [p for p in pids if p not in seen]
        return new and new[0]
    return wait_for(find, 20, "a replica begins to fill")


def test_both_replicas_share_one_image_and_answer_as_with_weights_of_their_own():
    with Server(env={"BATON_SHARE_WEIGHTS": "false"}) as server:
        server.launch("1p1d")
        assert len(ways(server, "private")) == 2 and images(server) == (0, 0)
        want = answer(server)
    with Server() as server:
        server.launch("1p1d")
        assert len(ways(server, "filled")) == 1 and len(ways(server, "shared")) == 1 and not ways(server, "private")
        kilobytes, files = images(server)
        size = int(re.search(r"bytes=(\d+)", ways(server, "shared")[0])[1])
        assert files == 1 and kilobytes <= size / 1024 + 64
        assert answer(server) == want
        # Another model uid of the same file shares it too.
        server.launch("hybrid", uid="again")
        assert len(ways(server, "shared")) == 2 and images(server)[1] == 1
        assert answer(server, model="again") == want
        server.terminate()
        assert answer(server, model="again") == want
        server.terminate("again")
        wait_for(lambda: images(server) == (0, 0), 5, "the memory is given back")
        wait_for(lambda: "weights.dropped" in server.log(), 5, "the worker lets go")
        worker = server.worker_pid()
        assert not [f for f in os.listdir(f"/proc/{worker}/fd") if "baton-weights" in os.readlink(f"/proc/{worker}/fd/{f}")]


def test_filler_killed_in_mid_fill_is_replaced_by_the_one_that_waits():
    with Server(env={"BATON_ALLOW_FAULT_HOOKS": "true", "BATON_LOG_LEVEL": "debug"}) as server:
        server.launch("hybrid", uid="first", fault="fill_delay_ms=600000", wait=False)
        filler = filler_pid(server)
        server.launch("1p1d", fault="fill_delay_ms=1", wait=False)
        wait_for(lambda: server.log().count("weights.awaited model_uid=m ") == 2, 20, "both replicas of the second model wait")
        assert not ways(server, "filled")
        os.kill(filler, signal.SIGKILL)
        assert filler_pid(server, {filler}) in [int(p) for p in re.findall(r"replica\.started model_uid=m .* pid=(\d+)", server.log())]
        wait_for(lambda: UID in [m["id"] for m in server.http.get("/v1/models").json()["data"]], 60, "the second launch succeeds")
        wait_for(lambda: server.lines("launch.failed", model_uid="first"), 20, "the first one fails: its only replica was killed")
        assert len(ways(server, "filled")) == 1 and len(ways(server, "shared")) == 1 and not ways(server, "private")
        assert images(server)[1] == 1
        assert answer(server)


def test_either_replica_killed_later_harms_nobody():
    with Server() as server:
        server.launch("1p1d")
        want = answer(server)
        for role in ("prefill", "decode"):
            pid = server.pids(role)[0]
            shared = len(ways(server, "shared"))
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: pid not in server.pids(), 5, "the loss is noticed")
            server.wait_ready()
            assert len(ways(server, "shared")) == shared + 1, "the new one finds the image of the one that lives"
            assert answer(server, f"{role} is back: " + "x" * 40) and answer(server) == want
        assert len(ways(server, "filled")) == 1 and images(server)[1] == 1
        # Both at once: the image goes with them, and is made anew.
        for pid in server.pids():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not server.pids() or len(ways(server, "filled")) == 2, 30, "they come back")
        server.wait_ready()
        assert answer(server) == want and images(server)[1] == 1
