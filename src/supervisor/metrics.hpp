#pragma once

#include <string>

#include "auth.hpp"
#include "deployments.hpp"
#include "workers.hpp"

namespace baton::supervisor {

class Exposition;

/// The text of /metrics (Prometheus exposition format 0.0.4): baton's own families, then those by Xinference's names. `auth`
/// may be null. Control thread.
[[nodiscard]] std::string render_metrics(const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s);
/// The second part: what dashboards made for Xinference read.
void add_xinference_metrics(Exposition& x, const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s);

/// What gateways read, by vLLM's names.
void add_gateway_metrics(Exposition& x, const Deployments& deployments);

}  // namespace baton::supervisor
