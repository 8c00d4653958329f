#pragma once

#include <functional>

#include "baton/config/settings.hpp"

namespace baton::supervisor {

/// Reads the settings anew, from where they came.
using ReadSettings = std::function<Expected<config::SupervisorSettings>()>;

/// Runs the supervisor (with a local worker as a child process where settings.local_worker) until SIGTERM: HTTP server,
/// control links, deployments. SIGHUP reads the settings and the auth file again, and takes over keys and the log level.
/// Blocks; returns the exit code.
int run(const config::SupervisorSettings& settings, ReadSettings read_again = {});

}  // namespace baton::supervisor
