#pragma once

#include "baton/config/replica_settings.hpp"

namespace baton::replica {

/// Runs one replica process until SIGTERM or until its supervisor link is gone for good. Blocks; returns the exit code.
int run(const config::ReplicaSettings& settings);

}  // namespace baton::replica
