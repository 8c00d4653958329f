#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/error.hpp"
#include "baton/kv/layout.hpp"
#include "xavier/pool_file.hpp"

namespace baton::xavier {

/// The pool a replica's movers work on: in its shared file, or on a device with the words in that file. Transfer thread
/// only.
class OwnPool {
  public:
    /// `device` null: the pool is in the file. Both must outlive it.
    OwnPool(PoolFile& file, backend::DevicePool* device) : file_(file), device_(device) {}

    [[nodiscard]] const kv::PoolLayout& layout() const { return file_.layout(); }
    [[nodiscard]] PoolFile& file() { return file_; }
    [[nodiscard]] const PoolFile& file() const { return file_; }
    [[nodiscard]] backend::DevicePool* device() const { return device_; }

    /// True when the work of that ticket (0: none) can touch nothing any more: it is done, or the device is lost. A lost
    /// device is logged once.
    bool settled(uint64_t ticket);
    /// The device failed: what was copied is worth nothing, and nothing more will be.
    [[nodiscard]] bool lost() const { return lost_; }
    /// Waits until settled; for rare ends and test modes.
    void settle(uint64_t ticket);

    /// block_checksum() wherever the pool is; `block` < layout().blocks. Waits for the copy.
    [[nodiscard]] Expected<uint64_t> checksum(uint32_t block);
    /// Changes one bit of a block: fault hook.
    void corrupt(uint32_t block);

  private:
    PoolFile& file_;
    backend::DevicePool* device_;
    bool lost_ = false;
};

}  // namespace baton::xavier
