#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/pool_gatherer.hpp"
#include "xavier/progress.hpp"

/// The shared memory file of a pool, both ends of it. docs/XAVIER.md has the byte layout and the ordering argument.
namespace baton::xavier {

/// Offsets in the file; a function of layout and slot count alone, so that a reader never follows an offset it was given.
struct FilePlan {
    size_t slots = 0;
    size_t generations = 0;
    size_t pool = 0;
    size_t pool_bytes = 0;  ///< 0: the pool lies on a device
    size_t bytes = 0;
};
[[nodiscard]] FilePlan plan_file(const kv::PoolLayout& layout, uint32_t progress_slots, bool words_only = false);

inline constexpr uint32_t kProgressSlotsMax = 1u << 16;

/// The header at offset 0, little-endian.
struct FileHeader {
    uint64_t magic = 0;  ///< "BTNPOOL1"
    uint32_t version = 0;
    uint32_t progress_slots = 0;
    uint64_t slots_offset = 0;
    uint64_t generations_offset = 0;
    uint64_t pool_offset = 0;
    uint64_t pool_bytes = 0;  ///< of the layout, or 0: the pool lies on a device
    uint64_t file_bytes = 0;
    uint64_t layout_checksum = 0;  ///< checksum64 of a LinkHello frame with this layout and nothing else
};
static_assert(sizeof(FileHeader) == 64);
/// The doorbell has a cache line of its own.
inline constexpr size_t kDoorbellOffset = 128;

/// The writable end: a replica's own pool.
class PoolFile final : public SharedPool {
  public:
    PoolFile(FilePlan plan, kv::PoolLayout layout, uint32_t progress_slots, Mapping map, UniqueFd fd);
    /// Fills the header of a fresh file.
    void initialise();

    [[nodiscard]] std::span<std::byte> pool() override { return pool_; }
    [[nodiscard]] std::span<std::byte> words() override;
    [[nodiscard]] uint64_t* progress_word(uint32_t slot) override;
    [[nodiscard]] const kv::PoolLayout& layout() const override { return layout_; }
    [[nodiscard]] int fd() const override { return fd_.get(); }
    void open_progress(const pd::OpenProgress& open) override;
    void close_progress(const pd::CloseProgress& close) override;
    void set_progress(uint32_t slot, uint32_t chunk_begin, uint32_t chunk_end, uint32_t layers) override;
    void set_generation(BlockId block, Generation generation) override;
    void will_use(std::span<const BlockId> blocks) override { gatherer_.will_use(blocks); }

    // Transfer thread.
    [[nodiscard]] std::span<const std::byte> bytes() const { return pool_; }
    [[nodiscard]] const uint32_t* doorbell() const;
    /// An open offer's blocks; none when it is not open (any more).
    [[nodiscard]] std::optional<pd::OpenProgress> find_offer(OfferId offer) const;
    /// An open offer's progress; none when it is over.
    [[nodiscard]] std::optional<Progress> progress(uint32_t slot, OfferId offer) const;
    /// Runs `body` while the offer is open and cannot be closed: close_progress() waits for it, so its blocks are not
    /// reused meanwhile. False, and nothing is run, when it is closed.
    template <class Body>
    bool while_open(OfferId offer, Body body) const {
        const std::lock_guard lock(mutex_);
        if (offers_.find(offer) == offers_.end()) return false;
        body();
        return true;
    }
    [[nodiscard]] bool generations_match(std::span<const BlockId> blocks, std::span<const Generation> expected) const;
    /// As PoolView::still_valid().
    [[nodiscard]] bool still_valid(uint32_t slot, OfferId offer, std::span<const uint32_t> blocks,
                                   std::span<const Generation> generations) const;

  private:
    const FilePlan plan_;
    const kv::PoolLayout layout_;
    const uint32_t progress_slots_;
    Mapping map_;
    UniqueFd fd_;
    std::byte* base_;
    std::span<std::byte> pool_;
    mutable std::mutex mutex_;  ///< guards offers_; held while an extent of an offer is gathered
    std::map<OfferId, pd::OpenProgress> offers_;
    PoolGatherer gatherer_;
};

/// The read-only end: a peer's pool. Whatever the peer writes into it, nothing outside the mapping is touched.
class PoolView {
  public:
    /// Maps a peer's file. kCorrupt when it is smaller than it must be, could shrink under a reader's feet, or its header
    /// does not say what the handshake said. `progress_slots` 0 takes the header's word for it, within bounds.
    static Expected<PoolView> map(UniqueFd fd, const kv::PoolLayout& layout, uint32_t progress_slots);

    /// Empty when the file holds the words alone.
    [[nodiscard]] std::span<const std::byte> pool() const { return map_.bytes().subspan(plan_.pool, plan_.pool_bytes); }
    [[nodiscard]] bool words_only() const { return plan_.pool_bytes == 0; }
    [[nodiscard]] const kv::PoolLayout& layout() const { return layout_; }
    [[nodiscard]] uint32_t progress_slots() const { return progress_slots_; }
    [[nodiscard]] const uint32_t* doorbell() const;
    /// The progress of this offer; none when the slot belongs to another one or to nobody. `slot` < progress_slots().
    [[nodiscard]] std::optional<Progress> progress(uint32_t slot, OfferId offer) const;
    /// Call after the copying: true when the slot still is the offer's and no block's generation changed, so that every
    /// byte copied before is what the offer promised.
    [[nodiscard]] bool still_valid(uint32_t slot, OfferId offer, std::span<const uint32_t> blocks,
                                   std::span<const Generation> generations) const;

  private:
    PoolView(FilePlan plan, kv::PoolLayout layout, uint32_t progress_slots, Mapping map);
    FilePlan plan_;
    kv::PoolLayout layout_;
    uint32_t progress_slots_;
    Mapping map_;
};

}  // namespace baton::xavier
