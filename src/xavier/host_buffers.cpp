#include "xavier/host_buffers.hpp"

#include "baton/base/log.hpp"

namespace baton::xavier {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

HostBuffers::~HostBuffers() {
    for (const Buffer& b : buffers_) own_.settle(b.ticket);
    if (pinned_) own_.device()->unpin(memory_.mutable_bytes());
}

bool HostBuffers::make() {
    bytes_ = (bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes;
    auto fd = make_memfd("baton-extents", bytes_ * kBuffers);
    if (!fd) return false;
    auto map = Mapping::map_fd(fd->get(), bytes_ * kBuffers, true);
    if (!map) return false;
    memory_ = std::move(*map);
    pinned_ = own_.device()->pin(memory_.mutable_bytes());
    if (!pinned_) log::warn("xavier.not_pinned", {{"bytes", memory_.bytes().size()}});
    buffers_.resize(kBuffers);
    return true;
}

std::optional<size_t> HostBuffers::take() {
    if (buffers_.empty() && !make()) return std::nullopt;
    for (size_t i = 0; i < buffers_.size(); ++i) {
        Buffer& b = buffers_[i];
        if (b.taken || !own_.settled(b.ticket)) continue;
        b = {true, 0};
        return i;
    }
    return std::nullopt;
}

void HostBuffers::give(size_t buffer, uint64_t ticket) { buffers_[buffer] = {false, ticket}; }

}  // namespace baton::xavier
