#pragma once

#include <string>
#include <vector>

#include "baton/config/settings.hpp"

namespace baton::worker {

/// Runs the agent of one host until SIGTERM, or until its supervisor is gone (at once where it is a child of `serve`, else
/// after supervisor_grace_ms): registers with the supervisor, spawns, watches and reaps replicas, owns the snapshot store.
/// Blocks; returns the process's exit code. Logs `worker registered at IP:PORT`.
int run(const config::WorkerSettings& settings);

}  // namespace baton::worker
