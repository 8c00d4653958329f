#pragma once

#include "baton/backend/plan.hpp"
#include "baton/cli/bench.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {

/// `baton bench engine --device cuda`: decode steps over batches and contexts, prefill over lengths, as one table.
int run_bench_cuda(const BenchEngineOptions& options, const backend::Plan& plan);
/// The same as the JSON that it prints.
[[nodiscard]] Expected<Json> measure_cuda(const BenchEngineOptions& options, const backend::Plan& plan);

}  // namespace baton::cli
