#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/fd.hpp"

/// The pool of a fake GPU: a memory file, which another process finds through this one's /proc entry.
namespace baton::fake_gpu {

class FakePool final : public backend::DevicePool {
  public:
    static Expected<std::unique_ptr<FakePool>> make(const kv::PoolLayout& layout, std::string gpu);

    [[nodiscard]] std::span<std::byte> memory() { return map_.mutable_bytes(); }
    const kv::PoolLayout& layout() const override { return layout_; }
    std::string gpu() const override { return gpu_; }
    std::vector<std::string> mappable_gpus() const override;
    Expected<std::vector<std::byte>> export_handle() const override;
    Expected<uint32_t> map(std::span<const std::byte> handle, const kv::PoolLayout& layout) override;
    void unmap(uint32_t peer) override { peers_.erase(peer); }
    Expected<uint64_t> pull(uint32_t peer, const backend::PageCopy& copy) override;
    Expected<uint64_t> to_host(const backend::PageCopy& copy, std::span<std::byte> host) override;
    Expected<uint64_t> from_host(const backend::PageCopy& copy, std::span<const std::byte> host) override;
    bool pin(std::span<std::byte>) override { return true; }
    void unpin(std::span<std::byte>) override {}
    Expected<bool> done(uint64_t ticket) override { return ticket <= tickets_; }
    void set_copy_options(const backend::CopyOptions&) override {}

  private:
    struct Peer {
        Mapping map;
        kv::PoolLayout layout;
    };
    template <class Page>
    void each_page(const backend::PageCopy& copy, size_t blocks, Page page) const;

    kv::PoolLayout layout_;
    std::string gpu_;
    UniqueFd fd_;
    Mapping map_;
    std::map<uint32_t, Peer> peers_;
    uint32_t next_peer_ = 1;
    uint64_t tickets_ = 0;  ///< copies are done when they are asked for
};

}  // namespace baton::fake_gpu
