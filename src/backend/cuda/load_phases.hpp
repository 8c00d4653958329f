#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "baton/backend/backend.hpp"

namespace baton::backend::cuda {

/// Times the parts of a load that follow one another.
class LoadPhases {
  public:
    /// What was done since the last call, or since this was made, was `name`.
    void done(std::string name) {
        const auto now = std::chrono::steady_clock::now();
        phases_.push_back({std::move(name), std::chrono::duration<double, std::milli>(now - last_).count()});
        last_ = now;
    }
    [[nodiscard]] const std::vector<LoadPhase>& all() const { return phases_; }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
    std::vector<LoadPhase> phases_;
};

}  // namespace baton::backend::cuda
