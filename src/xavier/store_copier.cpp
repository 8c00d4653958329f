#include "xavier/store_copier.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "baton/base/clock.hpp"
#include "xavier/page_copy.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {
namespace {

constexpr int64_t kFirstWaitUs = 50'000;
constexpr int64_t kPauseRatio = 3;
/// Queued on a device at once, one block at least.
constexpr uint64_t kDeviceSliceBytes = 4u * 1024 * 1024;
/// Sleep between looks at a device's copies, and at a write's end where nothing else is to do.
constexpr int64_t kPollUs = 20;
constexpr auto kWriteLook = std::chrono::microseconds(200);

}  // namespace

Expected<StoreMap> StoreMap::open(UniqueFd fd, uint32_t slots, uint64_t slot_bytes, const kv::PoolLayout& layout) {
    if (slots == 0 || slot_bytes < layout.block_bytes())
        return fail(ErrorCode::kUnsupported, "snapshot store: a block of " + std::to_string(layout.block_bytes()) +
                                                 " bytes does not fit a slot of " + std::to_string(slot_bytes));
    if (slot_bytes > (uint64_t{1} << 46) / slots) return fail(ErrorCode::kCorrupt, "snapshot store: sizes out of range");
    StoreMap store;
    store.slots = slots;
    store.slot_bytes = slot_bytes;
    BATON_TRY_ASSIGN(store.map, Mapping::map_fd(fd.get(), slots * slot_bytes, true));
    return store;
}

StoreCopier::StoreCopier(OwnPool& own, const TransferThread::Callbacks& callbacks, std::function<void()> wake)
    : own_(own), callbacks_(callbacks), wake_(std::move(wake)) {}

void StoreCopier::set_store(StoreMap store) {
    fail_all();  // what was meant for the store before
    pinner_.reset();
    writer_.reset();
    store_ = std::move(store);
    if (own_.device() == nullptr) return;
    pinner_ = std::make_unique<SlabPinner>(*own_.device(), store_->map.mutable_bytes(), store_->slot_bytes, wake_);
    writer_ = std::make_unique<StoreWriter>(*own_.device(), std::max<size_t>(kDeviceSliceBytes, own_.layout().block_bytes()), wake_);
}

bool StoreCopier::valid(const pd::StoreCopy& copy) const {
    if (!store_ || copy.blocks.size() != copy.slots.size() || jobs_.size() >= kCopiesMax) return false;
    for (size_t i = 0; i < copy.blocks.size(); ++i)
        if (copy.blocks[i] >= own_.layout().blocks || copy.slots[i] >= store_->slots) return false;
    return true;
}

void StoreCopier::start(pd::StoreCopy copy) {
    if (!valid(copy)) return report(copy.copy, false);
    const int64_t begin = copy.to_store ? steady_now_us() + kFirstWaitUs : 0;
    if (copy.to_store) jobs_.push_back({std::move(copy), 0, begin});
    else jobs_.push_front({std::move(copy), 0, begin});
    waits_ = false;
}

int64_t StoreCopier::idle_us(int64_t now_us) const {
    if (jobs_.empty() || waits_) return kNothing;
    if (jobs_.front().ticket != 0) return kPollUs;
    return std::max<int64_t>(0, due_us(jobs_.front()) - now_us);
}

/// When the job's next slice may begin.
int64_t StoreCopier::due_us(const Job& job) const {
    return job.copy.to_store ? std::max(job.not_before_us, rest_until_us_) : job.not_before_us;
}

bool StoreCopier::step(int64_t now_us) {
    if (jobs_.empty()) return false;
    Job& job = jobs_.front();
    if (job.writing) {
        waits_ = writer_->buffer().empty();
        return !waits_ && end_slice(job, now_us);
    }
    if (job.ticket != 0) {
        if (!own_.settled(job.ticket)) return false;
        if (job.pieces.empty() || own_.lost()) return end_slice(job, now_us);
        writer_->write(std::move(job.pieces));
        job.writing = waits_ = true;
        return true;
    }
    if (now_us < due_us(job)) return false;
    waits_ = !copy_slice(job);
    if (waits_) return false;
    job.slice_us = now_us;
    return job.ticket != 0 || end_slice(job, steady_now_us());
}

bool StoreCopier::copy_slice(Job& job) {
    if (own_.device() != nullptr) return job.copy.to_store ? queue_out(job) : queue_back(job);
    const kv::PoolLayout& layout = own_.layout();
    const Extent whole{0, layout.layers, 0, 1};
    for (uint64_t copied = 0; copied < kCopySliceBytes && job.next < job.copy.blocks.size(); ++job.next) {
        const auto block = std::span(job.copy.blocks).subspan(job.next, 1);
        const auto slot = slot_of(job);
        copied += slot.size();
        if (job.copy.to_store) gather_extent(slot, {own_.file().pool(), layout, block}, whole);
        else scatter_extent({own_.file().pool(), layout, block}, slot, whole);
    }
    return true;
}

/// The store's bytes of the job's next block.
std::span<std::byte> StoreCopier::slot_of(const Job& job) {
    return store_->map.mutable_bytes().subspan(job.copy.slots[job.next] * store_->slot_bytes, own_.layout().block_bytes());
}

/// As many blocks as the buffer holds, which are packed there as they are in slots.
bool StoreCopier::queue_out(Job& job) {
    const std::span<std::byte> buffer = writer_->buffer();
    if (buffer.empty()) {
        job.failed = writer_->refused();
        return job.failed;
    }
    const kv::PoolLayout& layout = own_.layout();
    const size_t count = std::min(job.copy.blocks.size() - job.next, buffer.size() / layout.block_bytes());
    const auto blocks = std::span(job.copy.blocks).subspan(job.next, count);
    const auto ticket = own_.device()->to_host({0, layout.layers, blocks, blocks}, buffer.first(count * layout.block_bytes()));
    job.failed = job.failed || !ticket;
    if (!ticket) return true;
    job.ticket = *ticket;
    job.pieces.clear();
    for (size_t i = 0; i < count; ++i, ++job.next) job.pieces.push_back(slot_of(job));
    return true;
}

bool StoreCopier::queue_back(Job& job) {
    const kv::PoolLayout& layout = own_.layout();
    const size_t first = job.next;
    for (uint64_t copied = 0; copied < kDeviceSliceBytes && job.next < job.copy.blocks.size(); ++job.next) {
        const auto block = std::span(job.copy.blocks).subspan(job.next, 1);
        copied += layout.block_bytes();
        if (!pinner_->ready(job.copy.slots[job.next] * store_->slot_bytes)) return job.next != first;
        const auto ticket = own_.device()->from_host({0, layout.layers, block, block}, slot_of(job));
        job.failed = job.failed || !ticket;
        if (!ticket) break;
        job.ticket = *ticket;
    }
    return true;
}

/// Always true: something was done.
bool StoreCopier::end_slice(Job& job, int64_t now_us) {
    job.failed = job.failed || (job.ticket != 0 && own_.lost());
    job.ticket = 0;
    job.pieces.clear();
    job.writing = false;
    // Also after a copy's last slice: a decode replica's copies are of a block or a few each, one after the other.
    if (job.copy.to_store) rest_until_us_ = now_us + (now_us - job.slice_us) * kPauseRatio;
    if (!job.failed && job.next < job.copy.blocks.size()) return true;
    const uint64_t id = job.copy.copy;
    const bool ok = !job.failed;
    jobs_.pop_front();
    report(id, ok);
    return true;
}

void StoreCopier::fail_all() {
    while (!jobs_.empty()) {
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        own_.settle(job.ticket);
        while (job.writing && writer_->buffer().empty()) std::this_thread::sleep_for(kWriteLook);
        report(job.copy.copy, false);
    }
    waits_ = false;
}

void StoreCopier::report(uint64_t copy, bool ok) {
    if (callbacks_.store_copied) callbacks_.store_copied(copy, ok);
}

}  // namespace baton::xavier
