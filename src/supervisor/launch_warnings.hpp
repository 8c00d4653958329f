#pragma once

#include <string>
#include <vector>

#include "baton/config/launch.hpp"
#include "baton/model/model.hpp"

namespace baton::supervisor {

/// What a launch asks for that it does not get, or that will surprise whoever asked: one sentence each, for the log, the
/// events and the answer. `labelled`: format and quantization are the client's own words about files it named.
[[nodiscard]] std::vector<std::string> launch_warnings(const config::LaunchRequest& request, const model::ModelInfo& model, bool labelled);

}  // namespace baton::supervisor
