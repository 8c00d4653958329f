#pragma once

#include "baton/cli/bench.hpp"

namespace baton::cli {

/// `baton bench handoff --url`: what a client sees of a server's hand-offs. The gap between the first two tokens holds the
/// end of the hand-off and the decode replica's first step; the gaps behind it are the running inter-token latency.
int run_bench_handoff_gap(const BenchHandoffOptions& options);

}  // namespace baton::cli
