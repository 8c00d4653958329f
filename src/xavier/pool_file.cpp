#include "xavier/pool_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>

#include "baton/base/check.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/huge_pages.hpp"
#include "xavier/doorbell.hpp"
#include "xavier/layout.hpp"
#include "xavier/page_copy.hpp"

namespace baton::xavier {
namespace {

constexpr uint64_t kMagic = 0x314c4f4f504e5442;  // "BTNPOOL1"
constexpr uint32_t kVersion = 1;
constexpr size_t kPageBytes = 4096;
constexpr size_t kSlotBytes = 64;  // a cache line each: offer id, progress word

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free && std::atomic_ref<uint32_t>::is_always_lock_free);

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// Orders what was read (written) before it before the words read (pages written) after it, see docs/XAVIER.md.
/// ThreadSanitizer knows no fences; in its builds nothing depends on them (x86, in-process readers use the mutex).
void fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)
    std::atomic_signal_fence(order);
#else
    std::atomic_thread_fence(order);
#endif
}

std::atomic_ref<uint64_t> word64(const std::byte* p) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(p)));
}
std::atomic_ref<uint32_t> word32(const std::byte* p) {
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(const_cast<std::byte*>(p)));
}

/// A slot's two words, wherever the file is mapped.
struct Slot {
    const std::byte* at;
    [[nodiscard]] std::atomic_ref<uint64_t> offer() const { return word64(at); }
    [[nodiscard]] std::atomic_ref<uint64_t> progress() const { return word64(at + 8); }
};
Slot slot_at(const std::byte* base, const FilePlan& plan, uint32_t slot) { return {base + plan.slots + slot * kSlotBytes}; }

/// The offer is looked at before and after: the first look keeps out the progress of the offer before, the second that of
/// the offer after.
std::optional<Progress> read_progress(const Slot& slot, OfferId offer) {
    if (!offer) return std::nullopt;  // 0 marks a slot that is nobody's
    if (slot.offer().load(std::memory_order_acquire) != offer.value) return std::nullopt;
    const uint64_t word = slot.progress().load(std::memory_order_acquire);
    if (slot.offer().load(std::memory_order_acquire) != offer.value) return std::nullopt;
    return unpack(word);
}

bool same_generations(const std::byte* base, const FilePlan& plan, std::span<const uint32_t> blocks,
                      std::span<const Generation> expected) {
    for (size_t i = 0; i < blocks.size(); ++i)
        if (word32(base + plan.generations + blocks[i] * sizeof(Generation)).load(std::memory_order_acquire) != expected[i])
            return false;
    return true;
}

bool offer_stands(const std::byte* base, const FilePlan& plan, uint32_t slot, OfferId offer, std::span<const uint32_t> blocks,
                  std::span<const Generation> generations) {
    fence(std::memory_order_acquire);  // after every page read
    return slot_at(base, plan, slot).offer().load(std::memory_order_acquire) == offer.value &&
           same_generations(base, plan, blocks, generations);
}

FileHeader header_of(const FilePlan& plan, const kv::PoolLayout& layout, uint32_t progress_slots) {
    wire::LinkHello described;
    described.layout = to_wire(layout);
    const std::vector<std::byte> text = wire::encode(described);
    return {kMagic,    kVersion,        progress_slots, plan.slots, plan.generations,
            plan.pool, plan.pool_bytes, plan.bytes,     checksum64(text)};
}

Expected<std::unique_ptr<SharedPool>> make_file(const kv::PoolLayout& layout, uint32_t progress_slots, bool words_only) {
    BATON_TRY(check_layout(layout));
    if (progress_slots == 0 || progress_slots > kProgressSlotsMax)
        return fail(ErrorCode::kInvalidArgument, "progress slots must be within 1.." + std::to_string(kProgressSlotsMax));
    const FilePlan plan = plan_file(layout, progress_slots, words_only);
    BATON_TRY_ASSIGN(UniqueFd fd, make_memfd("baton-kv", plan.bytes));
    BATON_TRY_ASSIGN(Mapping map, Mapping::map_fd(fd.get(), plan.bytes, true));
    // Peers get a descriptor that cannot be mapped writable. Without /proc they get this one; they map read-only anyway.
    const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
    UniqueFd read_only(::open(self.c_str(), O_RDONLY | O_CLOEXEC));
    auto pool = std::make_unique<PoolFile>(plan, layout, progress_slots, std::move(map),
                                           read_only ? std::move(read_only) : std::move(fd));
    pool->initialise();
    return pool;
}

}  // namespace

FilePlan plan_file(const kv::PoolLayout& layout, uint32_t progress_slots, bool words_only) {
    FilePlan p;
    p.slots = kPageBytes;
    p.generations = round_up(p.slots + progress_slots * kSlotBytes, kPageBytes);
    const size_t words_end = p.generations + layout.blocks * sizeof(Generation);
    p.pool = round_up(words_end, words_only ? kPageBytes : kHugePageBytes);
    p.pool_bytes = words_only ? 0 : layout.pool_bytes();
    p.bytes = round_up(p.pool + p.pool_bytes, kPageBytes);
    return p;
}

uint64_t progress_base(uint32_t chunk_begin, uint32_t chunk_end) {
    BATON_CHECK(chunk_begin <= chunk_end && chunk_end <= kProgressTokensMax);
    return pack({chunk_begin, chunk_end, 0});
}

// ---- the writable end --------------------------------------------------------------------------------------------

Expected<std::unique_ptr<SharedPool>> SharedPool::create(const kv::PoolLayout& layout, uint32_t progress_slots) {
    return make_file(layout, progress_slots, false);
}

Expected<std::unique_ptr<SharedPool>> SharedPool::create_words(const kv::PoolLayout& layout, uint32_t progress_slots) {
    return make_file(layout, progress_slots, true);
}

PoolFile::PoolFile(FilePlan plan, kv::PoolLayout layout, uint32_t progress_slots, Mapping map, UniqueFd fd)
    : plan_(plan),
      layout_(std::move(layout)),
      progress_slots_(progress_slots),
      map_(std::move(map)),
      fd_(std::move(fd)),
      base_(map_.mutable_bytes().data()),
      pool_(map_.mutable_bytes().subspan(plan.pool, plan.pool_bytes)),
      gatherer_(pool_, layout_) {}

void PoolFile::initialise() {
    // Only a wish: most systems have huge pages for shared memory switched off, and gatherer_ asks again.
    if (!pool_.empty()) ::madvise(pool_.data(), pool_.size(), MADV_HUGEPAGE);
    const FileHeader header = header_of(plan_, layout_, progress_slots_);
    std::memcpy(base_, &header, sizeof header);
}

std::span<std::byte> PoolFile::words() {
    return map_.mutable_bytes().subspan(plan_.slots, plan_.generations - plan_.slots);
}

uint64_t* PoolFile::progress_word(uint32_t slot) {
    BATON_CHECK(slot < progress_slots_);
    return reinterpret_cast<uint64_t*>(base_ + plan_.slots + slot * kSlotBytes + sizeof(uint64_t));
}

void PoolFile::open_progress(const pd::OpenProgress& open) {
    BATON_CHECK(open.slot < progress_slots_ && open.blocks.size() == open.generations.size());
    BATON_CHECK(open.tokens <= kProgressTokensMax && open.done_tokens <= open.tokens && open.offer);
    for (size_t i = 0; i < open.blocks.size(); ++i) set_generation(open.blocks[i], open.generations[i]);
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(offers_, [&](const auto& entry) { return entry.second.slot == open.slot; });
        offers_[open.offer] = open;
    }
    const Slot slot = slot_at(base_, plan_, open.slot);
    slot.offer().store(0, std::memory_order_release);
    slot.progress().store(pack({open.done_tokens, open.done_tokens, layout_.layers}), std::memory_order_release);
    slot.offer().store(open.offer.value, std::memory_order_release);
}

void PoolFile::close_progress(const pd::CloseProgress& close) {
    BATON_CHECK(close.slot < progress_slots_);
    {
        const std::lock_guard lock(mutex_);  // waits for an extent being gathered, a millisecond at most
        offers_.erase(close.offer);
    }
    const Slot slot = slot_at(base_, plan_, close.slot);
    if (slot.offer().load(std::memory_order_relaxed) != close.offer.value) return;  // another offer's already
    slot.offer().store(0, std::memory_order_relaxed);
    fence(std::memory_order_release);  // before any write to the blocks' pages by their next owner
    ring(reinterpret_cast<uint32_t*>(base_ + kDoorbellOffset));
}

void PoolFile::set_progress(uint32_t slot, uint32_t chunk_begin, uint32_t chunk_end, uint32_t layers) {
    BATON_CHECK(slot < progress_slots_ && chunk_begin <= chunk_end && chunk_end <= kProgressTokensMax);
    // Release: whoever sees this word sees the pages it speaks of.
    slot_at(base_, plan_, slot).progress().store(pack({chunk_begin, chunk_end, layers}), std::memory_order_release);
    // Readers take a chunk's layers in lumps: waking them for less would only cost the computing threads.
    const uint64_t layer_bytes = uint64_t{chunk_end - chunk_begin} * pair_bytes(layout_) / layout_.block_tokens;
    const bool lump = layers > 0 && layers * layer_bytes / kCoalesceBytes > (layers - 1) * layer_bytes / kCoalesceBytes;
    if (layers < layout_.layers && !lump) return;
    ring(reinterpret_cast<uint32_t*>(base_ + kDoorbellOffset));
}

void PoolFile::set_generation(BlockId block, Generation generation) {
    BATON_CHECK(block < layout_.blocks);
    word32(base_ + plan_.generations + block * sizeof(Generation)).store(generation, std::memory_order_relaxed);
    fence(std::memory_order_release);  // before any write to the block's pages under this generation
}

const uint32_t* PoolFile::doorbell() const { return reinterpret_cast<const uint32_t*>(base_ + kDoorbellOffset); }

std::optional<pd::OpenProgress> PoolFile::find_offer(OfferId offer) const {
    const std::lock_guard lock(mutex_);
    const auto it = offers_.find(offer);
    if (it == offers_.end()) return std::nullopt;
    return it->second;
}

std::optional<Progress> PoolFile::progress(uint32_t slot, OfferId offer) const {
    return read_progress(slot_at(base_, plan_, slot), offer);
}

bool PoolFile::generations_match(std::span<const BlockId> blocks, std::span<const Generation> expected) const {
    return same_generations(base_, plan_, blocks, expected);
}

bool PoolFile::still_valid(uint32_t slot, OfferId offer, std::span<const uint32_t> blocks,
                           std::span<const Generation> generations) const {
    return offer_stands(base_, plan_, slot, offer, blocks, generations);
}

// ---- the read-only end -------------------------------------------------------------------------------------------

Expected<PoolView> PoolView::map(UniqueFd fd, const kv::PoolLayout& layout, uint32_t progress_slots) {
    BATON_TRY(check_layout(layout));
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return fail(ErrorCode::kCorrupt, "peer's pool is not a memory file sealed against shrinking");
    FileHeader header;
    BATON_TRY_ASSIGN(const Mapping first, Mapping::map_fd(fd.get(), kPageBytes, false));
    std::memcpy(&header, first.bytes().data(), sizeof header);
    if (progress_slots == 0) progress_slots = header.progress_slots;
    if (progress_slots == 0 || progress_slots > kProgressSlotsMax)
        return fail(ErrorCode::kCorrupt, "peer's pool: bad count of progress slots");
    const FilePlan plan = plan_file(layout, progress_slots, header.pool_bytes == 0);
    const FileHeader expected = header_of(plan, layout, progress_slots);
    if (std::memcmp(&header, &expected, sizeof header) != 0)
        return fail(ErrorCode::kCorrupt, "peer's pool: the file's header contradicts the handshake");
    BATON_TRY_ASSIGN(Mapping map, Mapping::map_fd(fd.get(), plan.bytes, false));
    return PoolView(plan, layout, progress_slots, std::move(map));
}

PoolView::PoolView(FilePlan plan, kv::PoolLayout layout, uint32_t progress_slots, Mapping map)
    : plan_(plan), layout_(std::move(layout)), progress_slots_(progress_slots), map_(std::move(map)) {}

const uint32_t* PoolView::doorbell() const {
    return reinterpret_cast<const uint32_t*>(map_.bytes().data() + kDoorbellOffset);
}

std::optional<Progress> PoolView::progress(uint32_t slot, OfferId offer) const {
    BATON_DCHECK(slot < progress_slots_);
    return read_progress(slot_at(map_.bytes().data(), plan_, slot), offer);
}

bool PoolView::still_valid(uint32_t slot, OfferId offer, std::span<const uint32_t> blocks,
                           std::span<const Generation> generations) const {
    return offer_stands(map_.bytes().data(), plan_, slot, offer, blocks, generations);
}

}  // namespace baton::xavier
