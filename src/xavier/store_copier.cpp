#include "xavier/store_copier.hpp"

#include <algorithm>

#include "baton/base/clock.hpp"
#include "xavier/page_copy.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {
namespace {

constexpr int64_t kFirstWaitUs = 50'000;
constexpr int64_t kPauseRatio = 3;

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

StoreCopier::StoreCopier(SharedPool& own, const TransferThread::Callbacks& callbacks) : own_(own), callbacks_(callbacks) {}

void StoreCopier::set_store(StoreMap store) {
    fail_all();  // what was meant for the store before
    store_ = std::move(store);
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
}

int64_t StoreCopier::idle_us(int64_t now_us) const {
    if (jobs_.empty()) return kNothing;
    return std::max<int64_t>(0, jobs_.front().not_before_us - now_us);
}

bool StoreCopier::step(int64_t now_us) {
    if (idle_us(now_us) > 0) return false;
    const kv::PoolLayout& layout = own_.layout();
    const Extent whole{0, layout.layers, 0, 1};
    Job& job = jobs_.front();
    for (uint64_t copied = 0; copied < kCopySliceBytes && job.next < job.copy.blocks.size(); ++job.next) {
        const auto block = std::span(job.copy.blocks).subspan(job.next, 1);
        const auto slot = store_->map.mutable_bytes().subspan(job.copy.slots[job.next] * store_->slot_bytes, layout.block_bytes());
        if (job.copy.to_store)
            gather_extent(slot, {own_.pool(), layout, block}, whole);
        else
            scatter_extent({own_.pool(), layout, block}, slot, whole);
        copied += layout.block_bytes();
    }
    const int64_t end_us = steady_now_us();
    if (job.next < job.copy.blocks.size()) {
        if (job.copy.to_store) job.not_before_us = end_us + (end_us - now_us) * kPauseRatio;
        return true;
    }
    const uint64_t id = job.copy.copy;
    jobs_.pop_front();
    report(id, true);
    return true;
}

void StoreCopier::fail_all() {
    while (!jobs_.empty()) {
        const uint64_t id = jobs_.front().copy.copy;
        jobs_.pop_front();
        report(id, false);
    }
}

void StoreCopier::report(uint64_t copy, bool ok) {
    if (callbacks_.store_copied) callbacks_.store_copied(copy, ok);
}

}  // namespace baton::xavier
