#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "baton/config/launch.hpp"

// Launch bodies as the state file keeps them, after what they describe has changed. A body that is no JSON object is left
// as it is.
namespace baton::supervisor {

/// The body with one more replica, placed as `added`; `count` is how many it has then.
[[nodiscard]] std::string with_replica(const std::string& body, size_t count, const config::ReplicaPlacement& added);
/// The body without the replica at `index`; `count` is how many it has then.
[[nodiscard]] std::string without_replica(const std::string& body, size_t count, size_t index);

/// Addresses (host:port) of the workers that the body names, in replica_config or worker_ip. A bare host is none: any worker of
/// that host will do.
[[nodiscard]] std::set<std::string> workers_named(const std::string& body);
/// The body in which each worker is named as it is called now: `now` maps old addresses to new ones.
[[nodiscard]] std::string readdressed(const std::string& body, const std::map<std::string, std::string>& now);

}  // namespace baton::supervisor
