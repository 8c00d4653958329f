"""`baton doctor split`: measures, simulates and advises; what is wrong with its input is named. Times themselves are not asserted."""

import json
import subprocess

import harness
import pytest

SMALL = ["--input-tokens", "96", "--output-tokens", "8", "--requests", "20", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
GIVEN = ["--prefill-ms", "128:1.2,1024:2.7,8192:26", "--decode-ms", "1@1024:0.52,64@1024:2.5,256@1024:7.8", "--device", "cuda", "--no-search"]


def split(*arguments, code=0, binary=None):
    done = subprocess.run([binary or harness.BINARY, "doctor", "split", *arguments], capture_output=True, text=True, timeout=300 * harness.PATIENCE)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_measures_a_model_and_advises(tmp_path):
    file = tmp_path / "rates.json"
    out = json.loads(split("--model-path", harness.MODEL, *SMALL, "--rate", "2", "--ttft-ms", "100000", "--itl-ms", "100000", "--save", str(file), "--json").stdout)
    assert [row["topology"] for row in out["topologies"]] == ["1 hybrid", "2 hybrid", "1P1D"]
    for row in out["topologies"]:
        assert row["requests"] == 20 and row["refused"] == 0 and row["good"]
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"] and 0 < row["tpot_ms"]["p50"] and 0 < row["output_tok_per_s"]
        assert row["good_up_to_per_s"] >= 2
        assert all(0 <= share <= 1 for share in row["busy"].values())
    assert out["recommendation"]["good"] and out["recommendation"]["topology"] in [row["topology"] for row in out["topologies"]]
    assert "against" in out["recommendation"]["why"]
    rates = out["rates"]
    assert rates["device"] == "cpu" and rates["kv_bytes_per_token"] > 0 and rates["kv_tokens"] > 0
    assert all(rates["beside"][a][b] >= 1 for a in ("prefill", "decode") for b in ("prefill", "decode"))
    assert any("M/D/1" in line for line in out["arithmetic"])
    # The measurement is kept, and read again gives the same advice.
    again = json.loads(split("--rates", str(file), *SMALL, "--rate", "2", "--ttft-ms", "100000", "--itl-ms", "100000", "--json").stdout)
    assert again["recommendation"]["topology"] == out["recommendation"]["topology"]
    assert len(again["rates"]["decode"]) == len(rates["decode"])


def test_known_times_and_limits_of_gpus():
    traffic = ["--input-tokens", "4096", "--output-tokens", "128", "--rate", "60", "--devices", "4", "--requests", "300"]
    out = json.loads(split(*GIVEN, *traffic, "--itl-ms", "4", "--ttft-ms", "200", "--json").stdout)
    assert [row["topology"] for row in out["topologies"]] == ["4 hybrid", "1P3D", "2P2D", "3P1D"]
    assert out["recommendation"]["good"] and "P" in out["recommendation"]["topology"]  # a chunk takes longer than a gap may
    assert any(m.startswith("ITL") for m in out["topologies"][0]["missed"])
    text = split(*GIVEN, *traffic, "--itl-ms", "4").stdout
    assert "TOPOLOGY" in text and "Take" in text and "chunk of n prompt tokens" in text
    one = json.loads(split(*GIVEN, "--topology", "2p1d,hybrid", "--concurrency", "3", "--requests", "60", "--json").stdout)
    assert [row["topology"] for row in one["topologies"]] == ["2P1D", "1 hybrid"]


def test_lengths_in_turn_and_a_shared_prefix():
    out = json.loads(split(*GIVEN, "--mix", "1024:16,64:128", "--rate", "30", "--prefix-share", "0.5", "--requests", "200", "--json").stdout)
    assert all(row["requests"] == 200 and row["refused"] == 0 for row in out["topologies"])
    assert any("cached" in line for line in out["arithmetic"])


def test_bench_serve_takes_lengths_in_turn(pd):
    done = subprocess.run([harness.BINARY, "bench", "serve", "--url", pd.url, "--mix", "40:3,9:7", "--token-ids", "1000", "--requests", "6", "--json"],
                          capture_output=True, text=True, timeout=120 * harness.PATIENCE)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["input_tokens"] == 3 * (40 + 9) and out["output_tokens"] == 3 * (3 + 7)


@pytest.mark.parametrize("arguments, named", [
    (["--rate", "1"], "--model-path"),
    ([*GIVEN], "--rate"),
    ([*GIVEN, "--rate", "1", "--concurrency", "2"], "--concurrency"),
    ([*GIVEN, "--rate", "-1"], "--rate"),
    ([*GIVEN, "--rate", "1", "--ttft-ms", "soon"], "--ttft-ms"),
    ([*GIVEN, "--rate", "1", "--percentile", "98"], "--percentile"),
    ([*GIVEN, "--rate", "1", "--prefix-share", "1.5"], "--prefix-share"),
    ([*GIVEN, "--rate", "1", "--topology", "1p0d"], "--topology: '1p0d'"),
    ([*GIVEN, "--rate", "1", "--mix", "5"], "mix: '5'"),
    ([*GIVEN, "--rate", "1", "--mix", "512:8", "--input-tokens", "512"], "--input-tokens"),
    ([*GIVEN, "--rate", "1", "--output-tokens", "8", "--mix", "512:8"], "--output-tokens"),
    (["--prefill-ms", "512:100,4096:1", "--decode-ms", "1@1024:1,64@1024:2", "--rate", "1"], "contradict"),
    ([*GIVEN, "--rate", "1", "--rates", "x"], "--rates"),
    (["--prefill-ms", "512", "--rate", "1"], "--prefill-ms: '512'"),
    (["--prefill-ms", "512:3", "--rate", "1"], "decode"),
    (["--prefill-ms", "512:3", "--decode-ms", "1:3", "--rate", "1"], "--decode-ms: '1:3'"),
    ([*GIVEN, "--rate", "1", "--input-tokens", "900000", "--requests", "1000"], "--requests"),
])
def test_what_is_wrong_is_named(arguments, named):
    assert named in split(*arguments, code=2).stderr


def test_prompts_shorter_than_all_that_were_timed_are_told():
    traffic = [*GIVEN, "--rate", "1", "--output-tokens", "4", "--requests", "50"]
    assert "prompts of 16 tokens are shorter than all that were timed (from 128 on)" in split(*traffic, "--input-tokens", "16").stdout
    assert "warning" not in split(*traffic, "--input-tokens", "128").stdout


def test_a_file_of_rates_that_is_wrong_is_named(tmp_path):
    file = tmp_path / "rates.json"
    for text, named in (("{", "is not JSON"), ('{"prefill": [{"tokens": 5, "ms": 0}]}', "prefill[0].ms"), ('{"device": 3}', "device"), ("{}", "prompt")):
        file.write_text(text)
        assert named in split("--rates", str(file), "--rate", "1", code=2).stderr
    assert "cannot read" in split("--rates", str(tmp_path / "none"), "--rate", "1", code=1).stderr


def test_a_model_that_is_none_and_an_answer_beyond_its_context(tmp_path):
    assert "none.gguf" in split("--model-path", str(tmp_path / "none.gguf"), "--rate", "1", code=1).stderr
    assert "context" in split("--model-path", harness.MODEL, "--rate", "1", "--input-tokens", "9000", code=2).stderr


def test_doctor_itself_is_as_before():
    done = subprocess.run([harness.BINARY, "doctor", "--port", "0", "--json"], capture_output=True, text=True, timeout=60 * harness.PATIENCE)
    assert "findings" in json.loads(done.stdout)
