#include "xavier/pool_gatherer.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "baton/base/huge_pages.hpp"

namespace baton::xavier {
namespace {

constexpr int kNice = 19;

}  // namespace

PoolGatherer::PoolGatherer(std::span<std::byte> pool, const kv::PoolLayout& layout)
    : pool_(pool.first(pool.size() / kHugePageBytes * kHugePageBytes)), block_bytes_(layout.block_bytes()) {
    if (pool_.empty() || reinterpret_cast<uintptr_t>(pool_.data()) % kHugePageBytes != 0 || layout.order != kv::PoolOrder::kBlockFirst) return;
    wanted_ = std::min(kAheadBytes, pool_.size());
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "baton-gather");
}

PoolGatherer::~PoolGatherer() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void PoolGatherer::will_use(std::span<const BlockId> blocks) {
    if (blocks.empty() || !thread_.joinable()) return;
    const size_t used = (size_t{*std::ranges::max_element(blocks)} + 1) * block_bytes_;
    const size_t want = std::min((used + kAheadBytes) / kHugePageBytes * kHugePageBytes, pool_.size());
    if (want <= wanted_) return;
    {
        const std::lock_guard lock(mutex_);
        if (want > wanted_) wanted_ = want;
    }
    wake_.notify_one();
}

void PoolGatherer::settle() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return given_up_ || gathered_ >= wanted_; });
}

void PoolGatherer::run() {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
    std::unique_lock lock(mutex_);
    while (!given_up_) {
        wake_.wait(lock, [&] { return stop_ || gathered_ < wanted_; });
        if (stop_) return;
        lock.unlock();
        // One at a time: the end is not kept waiting.
        const size_t got = gather_huge_pages(pool_.subspan(gathered_, kHugePageBytes));
        lock.lock();
        gathered_ += got;
        given_up_ = got == 0;  // the kernel cannot, or memory has no more of them
        if (given_up_ || gathered_ >= wanted_) settled_.notify_all();
    }
}

}  // namespace baton::xavier
