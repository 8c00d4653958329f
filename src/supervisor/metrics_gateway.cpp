#include <algorithm>

#include "exposition.hpp"
#include "metrics.hpp"

// What gateways for language models scrape to choose among servers, by the names that vLLM gave it.
namespace baton::supervisor {
namespace {

constexpr Exposition::About kFamilies[] = {
    {"vllm:num_requests_running", "gauge", "Sequences that have their first token."},
    {"vllm:num_requests_waiting", "gauge", "Accepted sequences without a token yet."},
    {"vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 0 to 1; of the fullest replica."},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that were taken, however they ended (outcome ok, error or aborted); not of those that were refused."},
    {"vllm:generation_tokens_total", "counter", "Output tokens that requests were given, however they ended (outcome ok, error or aborted)."},
};

}  // namespace

void add_gateway_metrics(Exposition& x, const Deployments& deployments) {
    x.declare(kFamilies);
    for (const auto& [uid, d] : deployments.all()) {
        if (!d->has_router() || d->state() != DeploymentState::kReady) continue;
        // A model is one engine here, however many replicas it has; requests name it by its uid.
        const Exposition::Labels who{{"model_name", uid}, {"engine", "0"}};
        const pd::RouterStats r = d->router_stats();
        // What is used of the replicas' KV pools that hold the most: new requests wait there first.
        double usage = 0;
        for (const Slot& s : d->slots()) {
            const double all = static_cast<double>(s.stats.blocks_free) + s.stats.blocks_used + s.stats.blocks_cached + s.stats.blocks_offered;
            if (s.state == SlotState::kUp && all > 0) usage = std::max(usage, (static_cast<double>(s.stats.blocks_used) + s.stats.blocks_offered) / all);
        }
        x.add("vllm:num_requests_running", who, r.running);
        x.add("vllm:num_requests_waiting", who, r.waiting);
        x.add("vllm:kv_cache_usage_perc", who, usage);
        x.add("vllm:prompt_tokens_total", who, static_cast<double>(d->prompt_tokens));
        x.add("vllm:generation_tokens_total", who, static_cast<double>(d->completion_tokens));
    }
}

}  // namespace baton::supervisor
