#include "fake_gpu/fake_pool.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace baton::fake_gpu {

Expected<std::unique_ptr<FakePool>> FakePool::make(const kv::PoolLayout& layout, std::string gpu) {
    auto pool = std::make_unique<FakePool>();
    pool->layout_ = layout;
    pool->gpu_ = std::move(gpu);
    BATON_TRY_ASSIGN(pool->fd_, make_memfd("fake-gpu-pool", layout.pool_bytes()));
    BATON_TRY_ASSIGN(pool->map_, Mapping::map_fd(pool->fd_.get(), layout.pool_bytes(), true));
    return pool;
}

/// All fake GPUs of a host reach each other.
std::vector<std::string> FakePool::mappable_gpus() const {
    std::vector<std::string> out;
    for (int i = 0; i < 16; ++i) out.push_back("GPU-fake-" + std::to_string(i));
    return out;
}

Expected<std::vector<std::byte>> FakePool::export_handle() const {
    const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_.get());
    const auto bytes = std::as_bytes(std::span(path));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Expected<uint32_t> FakePool::map(std::span<const std::byte> handle, const kv::PoolLayout& layout) {
    const std::string path(reinterpret_cast<const char*>(handle.data()), handle.size());
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return fail(ErrorCode::kIo, "the peer's pool cannot be opened");
    BATON_TRY_ASSIGN(Mapping map, Mapping::map_fd(fd.get(), layout.pool_bytes(), false));
    peers_.emplace(next_peer_, Peer{std::move(map), layout});
    return next_peer_++;
}

/// page(i, layer, v) for each page of a copy.
template <class Page>
void FakePool::each_page(const backend::PageCopy& copy, size_t blocks, Page page) const {
    for (size_t i = 0; i < blocks; ++i)
        for (uint32_t layer = copy.first_layer; layer < copy.first_layer + copy.layers; ++layer)
            for (const bool v : {false, true}) page(i, layer, v);
}

Expected<uint64_t> FakePool::pull(uint32_t peer, const backend::PageCopy& copy) {
    const auto it = peers_.find(peer);
    if (it == peers_.end()) return fail(ErrorCode::kInternal, "no such peer");
    const Peer& source = it->second;
    each_page(copy, copy.to.size(), [&](size_t i, uint32_t layer, bool v) {
        std::memcpy(memory().data() + layout_.page_offset(layer, v, copy.to[i]),
                    source.map.bytes().data() + source.layout.page_offset(layer, v, copy.from[i]), layout_.page_bytes());
    });
    return ++tickets_;
}

Expected<uint64_t> FakePool::to_host(const backend::PageCopy& copy, std::span<std::byte> host) {
    std::byte* out = host.data();
    each_page(copy, copy.from.size(), [&](size_t i, uint32_t layer, bool v) {
        std::memcpy(out, memory().data() + layout_.page_offset(layer, v, copy.from[i]), layout_.page_bytes());
        out += layout_.page_bytes();
    });
    return ++tickets_;
}

Expected<uint64_t> FakePool::from_host(const backend::PageCopy& copy, std::span<const std::byte> host) {
    const std::byte* in = host.data();
    each_page(copy, copy.to.size(), [&](size_t i, uint32_t layer, bool v) {
        std::memcpy(memory().data() + layout_.page_offset(layer, v, copy.to[i]), in, layout_.page_bytes());
        in += layout_.page_bytes();
    });
    return ++tickets_;
}

}  // namespace baton::fake_gpu
