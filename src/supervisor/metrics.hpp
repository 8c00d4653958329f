#pragma once

#include <string>

#include "deployments.hpp"
#include "workers.hpp"

namespace baton::supervisor {

/// The text of /metrics (Prometheus exposition format 0.0.4). Control thread.
[[nodiscard]] std::string render_metrics(const Deployments& deployments, const Workers& workers, int64_t uptime_s);

}  // namespace baton::supervisor
