#pragma once

#include "baton/config/settings.hpp"

namespace baton::supervisor {

/// Runs the supervisor (with a local worker as a child process where settings.local_worker) until SIGTERM: HTTP server,
/// control links, deployments. Blocks; returns the exit code.
int run(const config::SupervisorSettings& settings);

}  // namespace baton::supervisor
