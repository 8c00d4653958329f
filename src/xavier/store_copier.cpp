#include "xavier/store_copier.hpp"

#include <algorithm>

#include "baton/base/clock.hpp"
#include "xavier/page_copy.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {
namespace {

constexpr int64_t kFirstWaitUs = 50'000;
constexpr int64_t kPauseRatio = 3;
/// Queued on a device at once, one block at least.
constexpr uint64_t kDeviceSliceBytes = 4u * 1024 * 1024;
/// Sleep between looks at a device's copies.
constexpr int64_t kPollUs = 20;

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
    store_ = std::move(store);
    if (own_.device() != nullptr)
        pinner_ = std::make_unique<SlabPinner>(*own_.device(), store_->map.mutable_bytes(), store_->slot_bytes, wake_);
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
    waits_for_pin_ = false;
}

int64_t StoreCopier::idle_us(int64_t now_us) const {
    if (jobs_.empty() || waits_for_pin_) return kNothing;
    if (jobs_.front().ticket != 0) return kPollUs;
    return std::max<int64_t>(0, jobs_.front().not_before_us - now_us);
}

bool StoreCopier::step(int64_t now_us) {
    if (jobs_.empty()) return false;
    Job& job = jobs_.front();
    if (job.ticket != 0) return own_.settled(job.ticket) && end_slice(job, now_us);
    if (now_us < job.not_before_us) return false;
    waits_for_pin_ = !copy_slice(job);
    if (waits_for_pin_) return false;
    job.slice_us = now_us;
    return job.ticket != 0 || end_slice(job, steady_now_us());
}

bool StoreCopier::copy_slice(Job& job) {
    const kv::PoolLayout& layout = own_.layout();
    const bool device = own_.device() != nullptr;
    const Extent whole{0, layout.layers, 0, 1};
    const size_t first = job.next;
    for (uint64_t copied = 0; copied < (device ? kDeviceSliceBytes : kCopySliceBytes) && job.next < job.copy.blocks.size(); ++job.next) {
        const auto block = std::span(job.copy.blocks).subspan(job.next, 1);
        const size_t offset = job.copy.slots[job.next] * store_->slot_bytes;
        const auto slot = store_->map.mutable_bytes().subspan(offset, layout.block_bytes());
        copied += layout.block_bytes();
        if (!device) {
            if (job.copy.to_store) gather_extent(slot, {own_.file().pool(), layout, block}, whole);
            else scatter_extent({own_.file().pool(), layout, block}, slot, whole);
            continue;
        }
        if (!pinner_->ready(offset)) return job.next != first;
        const backend::PageCopy pages{0, layout.layers, block, block};
        const auto ticket = job.copy.to_store ? own_.device()->to_host(pages, slot) : own_.device()->from_host(pages, slot);
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
    if (!job.failed && job.next < job.copy.blocks.size()) {
        if (job.copy.to_store) job.not_before_us = now_us + (now_us - job.slice_us) * kPauseRatio;
        return true;
    }
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
        report(job.copy.copy, false);
    }
    waits_for_pin_ = false;
}

void StoreCopier::report(uint64_t copy, bool ok) {
    if (callbacks_.store_copied) callbacks_.store_copied(copy, ok);
}

}  // namespace baton::xavier
