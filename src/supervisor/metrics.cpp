#include "metrics.hpp"

#include <map>
#include <utility>
#include <vector>

#include "baton/base/build_info.hpp"
#include "baton/base/log.hpp"
#include "exposition.hpp"

namespace baton::supervisor {
namespace {

constexpr double kMicroseconds = 1e6;  ///< in a second

constexpr Exposition::About kFamilies[] = {
    {"baton_prefill_tokens_total", "counter", "Prompt tokens this replica computed."},
    {"baton_generated_tokens_total", "counter", "Tokens this replica sampled."},
    {"baton_found_tokens_total", "counter", "Tokens whose KV was here already when a sequence came."},
    {"baton_received_tokens_total", "counter", "Tokens whose KV a hand-off brought."},
    {"baton_replica_up", "gauge", "1 while the replica's process serves."},
    {"baton_kv_blocks", "gauge", "KV blocks of a replica by state."},
    {"baton_replica_faults_total", "counter", "Times that a replica went down unasked."},
    {"baton_replica_running", "gauge", "Sequences being computed."},
    {"baton_engine_steps_total", "counter", "Steps the replica's engine has run since its process started."},
    {"baton_engine_step_sequences", "histogram", "Batch size: sequences in a step of the replica's engine."},
    {"baton_engine_step_tokens_total", "counter", "Tokens that the replica's engine has computed; per step with baton_engine_steps_total."},
    {"baton_engine_host_seconds_total", "counter", "Seconds of the engine thread beside waiting and computing."},
    {"baton_replica_waiting", "gauge", "Sequences waiting at the replica."},
    {"baton_queue_depth", "gauge", "Sequences that wait for a replica of a role."},
    {"baton_stage_seconds", "histogram", "Parts of the requests' time, one after the other."},
    {"baton_token_gap_seconds", "histogram", "Time between two tokens: the first gap of each request, where the hand-off is, and the mean of those after it."},
    {"baton_handoff_added_seconds", "histogram", "By how much the first gap of a request with a hand-off was longer than the mean of its later ones."},
    {"baton_requests_total", "counter", "Requests that were taken, by how they ended. One that was refused at the door (400, 404, 429, 503) is in none."},
    {"baton_prompt_tokens_total", "counter", "Prompt tokens of requests that were taken, however they ended (outcome ok, error or aborted); not of those that were refused."},
    {"baton_completion_tokens_total", "counter", "Output tokens that requests were given, however they ended (outcome ok, error or aborted)."},
    {"baton_cached_tokens_total", "counter", "Prompt tokens that were found computed already."},
    {"baton_requests_running", "gauge", "Sequences that have their first token."},
    {"baton_requests_waiting", "gauge", "Accepted sequences without a token yet."},
    {"baton_ttft_seconds", "histogram", "From a request's first byte to its first token."},
    {"baton_tpot_seconds", "histogram", "Average time between two tokens of a request after its first."},
    {"baton_handoffs_total", "counter", "Hand-offs completed."},
    {"baton_handoff_bytes_total", "counter", "KV bytes moved."},
    {"baton_handoff_pull_seconds_total", "counter", "Seconds that pulls took, most of them beside the prefill; per hand-off with baton_handoffs_total."},
    {"baton_handoff_exposed_seconds_total", "counter", "Seconds from the end of the prefill to the end of the pull."},
    {"baton_fallbacks_total", "counter", "Hand-offs replaced by local computation."},
    {"baton_failovers_total", "counter", "Sequences started again elsewhere."},
    {"baton_aborts_total", "counter", "Requests aborted, by how far they had come."},
    {"baton_kv_leases", "gauge", "Rights to read KV of another replica or of the store that are held now."},
    {"baton_build_info", "gauge", "1; what this was built from in its labels."},
    {"baton_uptime_seconds", "gauge", "Seconds since the supervisor started."},
    {"baton_workers", "gauge", "Registered workers."},
    {"baton_log_lines_lost_total", "counter", "Log lines that could not be written."},
    {"baton_xavier_objects", "gauge", "Live objects of each kind; zero when no deployment is left."},
    {"baton_snapshots", "gauge", "Slots of the hosts' snapshot stores by state."},
};
/// Only where TLS is spoken.
constexpr Exposition::About kTlsFamilies[] = {
    {"baton_tls_certificate_expiry_timestamp_seconds", "gauge", "When the certificate in use expires, in seconds since 1970."},
    {"baton_tls_handshake_failures_total", "counter", "TLS handshakes that failed, clients that speak plain HTTP among them."},
};

const std::vector<double>& step_bounds() {
    static const std::vector<double> kBounds(wire::kStepSizeBounds.begin(), wire::kStepSizeBounds.end());
    return kBounds;
}

void add_replica(Exposition& x, const Deployment& d, const Slot& s) {
    const std::string replica = std::to_string(s.id.value - 1);
    const Exposition::Labels who{{"model_uid", d.uid()}, {"role", to_string(s.placement.role)}, {"replica", replica}};
    x.add("baton_prefill_tokens_total", who, static_cast<double>(s.prefill_tokens()));
    x.add("baton_generated_tokens_total", who, static_cast<double>(s.generated_tokens()));
    x.add("baton_found_tokens_total", who, static_cast<double>(s.stats.found_tokens));
    x.add("baton_received_tokens_total", who, static_cast<double>(s.stats.received_tokens));
    x.add("baton_replica_up", who, s.state == SlotState::kUp ? 1 : 0);
    const std::pair<const char*, uint32_t> blocks[] = {{"free", s.stats.blocks_free}, {"used", s.stats.blocks_used}, {"cached", s.stats.blocks_cached}, {"offered", s.stats.blocks_offered}};
    for (const auto& [state, n] : blocks)
        x.add("baton_kv_blocks", {{"model_uid", d.uid()}, {"role", to_string(s.placement.role)}, {"replica", replica}, {"state", state}}, n);
    x.add("baton_replica_faults_total", who, static_cast<double>(s.faults));
    x.add("baton_replica_running", who, s.stats.running);
    x.add("baton_engine_steps_total", who, static_cast<double>(s.stats.steps));
    x.add("baton_engine_step_sequences", who, Histogram(step_bounds(), s.stats.steps_by_size, static_cast<double>(s.stats.step_sequences)));
    x.add("baton_engine_step_tokens_total", who, static_cast<double>(s.stats.step_rows));
    x.add("baton_engine_host_seconds_total", who, static_cast<double>(s.stats.host_us) / kMicroseconds);
    x.add("baton_replica_waiting", who, s.stats.waiting);
}

/// Sequences that wait for a role. For prefill, or for hybrid replicas: those that no replica has yet and those in the replicas'
/// queues. For decode: those whose prefill is over while every decode replica was busy, and those in queues.
void add_queues(Exposition& x, const Deployment& d, const pd::RouterStats& r) {
    std::map<Role, uint64_t> depth;
    for (const Slot& s : d.slots()) depth[s.placement.role] += s.stats.waiting;
    if (const auto first = depth.find(Role::kPrefill); first != depth.end()) {
        first->second += r.unsent;
        depth[Role::kDecode] += r.staged;
    } else {
        depth[Role::kHybrid] += r.unsent;
    }
    for (const auto& [role, n] : depth)
        x.add("baton_queue_depth", {{"model_uid", d.uid()}, {"role", to_string(role)}}, static_cast<double>(n));
}

void add_stages(Exposition& x, const Deployment& d) {
    const std::pair<const char*, const Histogram*> stages[] = {{"prepare", &d.stages.prepare}, {"queue", &d.stages.queue}, {"prefill", &d.stages.prefill}, {"handoff", &d.stages.handoff}, {"decode", &d.stages.decode}};
    for (const auto& [stage, seconds] : stages)
        x.add("baton_stage_seconds", {{"model_uid", d.uid()}, {"stage", stage}}, *seconds);
    x.add("baton_token_gap_seconds", {{"model_uid", d.uid()}, {"gap", "first"}}, d.stages.first_gap);
    x.add("baton_token_gap_seconds", {{"model_uid", d.uid()}, {"gap", "later"}}, d.stages.later_gap);
    x.add("baton_handoff_added_seconds", {{"model_uid", d.uid()}}, d.stages.handoff_added);
}

void add_deployment(Exposition& x, const Deployment& d) {
    const Exposition::Labels uid{{"model_uid", d.uid()}};
    const auto with = [&](const char* key, const std::string& value) { return Exposition::Labels{{"model_uid", d.uid()}, {key, value}}; };
    const pd::RouterStats r = d.router_stats();
    x.add("baton_requests_total", with("outcome", "ok"), static_cast<double>(d.requests_ok));
    x.add("baton_requests_total", with("outcome", "error"), static_cast<double>(d.requests_error));
    x.add("baton_requests_total", with("outcome", "aborted"), static_cast<double>(d.requests_aborted));
    x.add("baton_prompt_tokens_total", uid, static_cast<double>(d.prompt_tokens));
    x.add("baton_completion_tokens_total", uid, static_cast<double>(d.completion_tokens));
    x.add("baton_cached_tokens_total", uid, static_cast<double>(d.cached_tokens));
    x.add("baton_requests_running", uid, r.running);
    x.add("baton_requests_waiting", uid, r.waiting);
    x.add("baton_ttft_seconds", uid, d.ttft);
    x.add("baton_tpot_seconds", uid, d.tpot);
    for (const auto& [mover, n] : r.handoffs_by_mover) x.add("baton_handoffs_total", with("mover", mover), static_cast<double>(n));
    for (const auto& [mover, n] : r.handoff_bytes_by_mover) x.add("baton_handoff_bytes_total", with("mover", mover), static_cast<double>(n));
    for (const auto& [mover, n] : r.handoff_pull_us_by_mover)
        x.add("baton_handoff_pull_seconds_total", with("mover", mover), static_cast<double>(n) / kMicroseconds);
    for (const auto& [mover, n] : r.handoff_exposed_us_by_mover)
        x.add("baton_handoff_exposed_seconds_total", with("mover", mover), static_cast<double>(n) / kMicroseconds);
    for (const auto& [reason, n] : r.fallbacks_by_reason) x.add("baton_fallbacks_total", with("reason", reason), static_cast<double>(n));
    for (const auto& [reason, n] : r.failovers_by_reason) x.add("baton_failovers_total", with("reason", reason), static_cast<double>(n));
    for (const pd::Phase p : {pd::Phase::kQueued, pd::Phase::kPrefill, pd::Phase::kTransfer, pd::Phase::kDecode})
        x.add("baton_aborts_total", with("phase", to_string(p)), static_cast<double>(d.aborts_by_phase[static_cast<size_t>(p)]));
    add_queues(x, d, r);
    add_stages(x, d);
    double leases = 0;
    for (const Slot& s : d.slots()) {
        add_replica(x, d, s);
        leases += s.stats.leases;
    }
    x.add("baton_kv_leases", uid, leases);
}

}  // namespace

std::string render_metrics(const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s, const std::optional<TlsFacts>& tls) {
    Exposition x;
    x.declare(kFamilies);
    add_xinference_metrics(x, deployments, workers, auth, uptime_s);
    add_gateway_metrics(x, deployments);
    const BuildInfo& b = build_info();
    x.add("baton_build_info",
          {{"version", std::string(b.version)}, {"revision", std::string(b.revision)}, {"build_type", std::string(b.type)}, {"compiler", std::string(b.compiler)}}, 1);
    x.add("baton_uptime_seconds", {}, static_cast<double>(uptime_s));
    x.add("baton_workers", {}, static_cast<double>(workers.all().size()));
    x.add("baton_log_lines_lost_total", {}, static_cast<double>(log::lost_lines()));
    if (tls) {
        x.declare(kTlsFamilies);
        x.add("baton_tls_certificate_expiry_timestamp_seconds", {}, static_cast<double>(tls->certificate_not_after));
        x.add("baton_tls_handshake_failures_total", {}, static_cast<double>(tls->handshakes_failed));
    }
    const ObjectCounts& c = deployments.counts();
    const std::pair<const char*, int> kinds[] = {{"router", c.router}, {"coordinator", c.coordinator}, {"collective_manager", c.collective_manager}, {"block_tracker", c.block_tracker}};
    for (const auto& [kind, n] : kinds) x.add("baton_xavier_objects", {{"kind", kind}}, n);
    uint32_t free = 0, filling = 0, complete = 0, leased = 0;
    for (const auto& [address, w] : workers.all()) {
        free += w.stats.snapshots_free;
        filling += w.stats.snapshots_filling;
        complete += w.stats.snapshots_complete;
        leased += w.stats.snapshots_leased;
    }
    const std::pair<const char*, uint32_t> snapshots[] = {{"free", free}, {"filling", filling}, {"complete", complete}, {"leased", leased}};
    for (const auto& [state, n] : snapshots) x.add("baton_snapshots", {{"state", state}}, n);
    for (const auto& [uid, d] : deployments.all())
        if (d->has_router()) add_deployment(x, *d);
    return x.text();
}

}  // namespace baton::supervisor
