#include "xavier/slab_pinner.hpp"

#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "baton/base/log.hpp"
#include "xavier/populate.hpp"

namespace baton::xavier {

SlabPinner::SlabPinner(backend::DevicePool& device, std::span<std::byte> memory, size_t unit, std::function<void()> changed)
    : device_(device), memory_(memory), changed_(std::move(changed)) {
    // Whole units and whole pages.
    const size_t least = std::lcm(unit, kPageBytes);
    slab_bytes_ = std::max<size_t>(kSlabBytes / least, 1) * least;
    states_.resize((memory.size() + slab_bytes_ - 1) / slab_bytes_, State::kIdle);
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "baton-pin");
}

SlabPinner::~SlabPinner() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
    for (size_t i = 0; i < states_.size(); ++i)
        if (states_[i] == State::kPinned) device_.unpin(slab(i));
}

std::span<std::byte> SlabPinner::slab(size_t index) const {
    const size_t begin = index * slab_bytes_;
    return memory_.subspan(begin, std::min(slab_bytes_, memory_.size() - begin));
}

bool SlabPinner::ready(size_t offset) {
    const size_t index = offset / slab_bytes_;
    {
        const std::lock_guard lock(mutex_);
        State& state = states_[index];
        if (state != State::kIdle) return state != State::kAsked;
        state = State::kAsked;
        asked_.push_back(index);
    }
    wake_.notify_one();
    return false;
}

void SlabPinner::run() {
    bool told = false;
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || !asked_.empty(); });
        if (stopping_) return;
        const size_t index = asked_.front();
        asked_.pop_front();
        lock.unlock();
        // Pages are made here, so that the driver, which other threads may wait for, holds its locks for a short time.
        populate(slab(index));
        const bool pinned = device_.pin(slab(index));
        if (!pinned && !std::exchange(told, true)) log::warn("xavier.not_pinned", {{"bytes", slab(index).size()}});
        lock.lock();
        states_[index] = pinned ? State::kPinned : State::kRefused;
        lock.unlock();
        changed_();
        lock.lock();
    }
}

}  // namespace baton::xavier
