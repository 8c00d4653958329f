#pragma once

#include <string_view>

#include "baton/xavier/mover.hpp"

namespace baton::xavier {

/// The process kills itself here when that was planted. Steps of D: pull_started, pull_first (the first pages were copied or
/// their copy was queued), pull_half (half of them), pull_copied (all, before the end is told). Steps of P, movers tcp and
/// nccl: serve_started, serve_first and serve_last (the first or last extent left).
void die_at(const TransferThread::Faults& faults, std::string_view step);

}  // namespace baton::xavier
