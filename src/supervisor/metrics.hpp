#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "auth.hpp"
#include "deployments.hpp"
#include "workers.hpp"

namespace baton::supervisor {

class Exposition;

/// What a server that speaks TLS says of it.
struct TlsFacts {
    int64_t certificate_not_after = 0;  ///< of the certificate in use, seconds since 1970
    uint64_t handshakes_failed = 0;
};

/// The text of /metrics (Prometheus exposition format 0.0.4): baton's own families, then those by Xinference's names. `auth`
/// may be null; without `tls` its families are not there. Control thread.
[[nodiscard]] std::string render_metrics(const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s, const std::optional<TlsFacts>& tls);
/// The second part: what dashboards made for Xinference read.
void add_xinference_metrics(Exposition& x, const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s);

/// What gateways read, by vLLM's names.
void add_gateway_metrics(Exposition& x, const Deployments& deployments);

}  // namespace baton::supervisor
