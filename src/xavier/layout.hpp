#pragma once

#include "baton/base/error.hpp"
#include "baton/kv/layout.hpp"

namespace baton::xavier {

/// Refuses what is not described (kUnsupported), or has a size of zero or beyond all reason (kCorrupt), so that no later
/// product of its numbers overflows.
[[nodiscard]] Expected<void> check_layout(const kv::PoolLayout& layout);

}  // namespace baton::xavier
