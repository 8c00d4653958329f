#include "xavier/store_writer.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "baton/base/log.hpp"
#include "xavier/populate.hpp"

namespace baton::xavier {
namespace {

/// Nobody waits for snapshots.
constexpr int kNice = 10;

}  // namespace

StoreWriter::StoreWriter(backend::DevicePool& device, size_t bytes, std::function<void()> changed)
    : device_(device), bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes), changed_(std::move(changed)) {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "baton-store");
}

StoreWriter::~StoreWriter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
    if (pinned_) device_.unpin(memory_.mutable_bytes());
}

std::span<std::byte> StoreWriter::buffer() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kFree ? memory_.mutable_bytes() : std::span<std::byte>{};
}

bool StoreWriter::refused() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kRefused;
}

void StoreWriter::write(std::vector<std::span<std::byte>> pieces) {
    {
        const std::lock_guard lock(mutex_);
        pieces_ = std::move(pieces);
        state_ = State::kWriting;
    }
    wake_.notify_one();
}

bool StoreWriter::make() {
    auto fd = make_memfd("baton-snapshots", bytes_);
    if (!fd) return false;
    auto map = Mapping::map_fd(fd->get(), bytes_, true);
    if (!map) return false;
    memory_ = std::move(*map);
    populate(memory_.mutable_bytes());
    pinned_ = device_.pin(memory_.mutable_bytes());
    if (!pinned_) log::warn("xavier.not_pinned", {{"bytes", bytes_}});
    return true;
}

void StoreWriter::run() {
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    const bool made = make();
    std::unique_lock lock(mutex_);
    state_ = made ? State::kFree : State::kRefused;
    for (;;) {
        lock.unlock();
        changed_();
        lock.lock();
        wake_.wait(lock, [&] { return stopping_ || state_ == State::kWriting; });
        if (state_ != State::kWriting) return;
        lock.unlock();
        const std::byte* from = memory_.bytes().data();
        for (const std::span<std::byte> piece : pieces_) {
            populate(piece);
            std::memcpy(piece.data(), from, piece.size());
            from += piece.size();
        }
        lock.lock();
        state_ = State::kFree;
    }
}

}  // namespace baton::xavier
