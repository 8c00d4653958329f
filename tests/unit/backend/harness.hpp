#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "baton/backend/backend.hpp"
#include "synthetic.hpp"

namespace baton::backend::test {

/// A backend with its own pool, for tests.
struct Harness {
    CpuOptions options;
    kv::PoolLayout layout;
    std::unique_ptr<std::byte[]> memory;
    std::span<std::byte> pool;
    std::unique_ptr<Backend> backend;

    Harness(const Plan& plan, CpuOptions o) : options(std::move(o)) {
        layout = cpu_kv_layout(plan.shape, options).value();
        memory = std::make_unique<std::byte[]>(layout.pool_bytes() + 64);
        const auto at = reinterpret_cast<uintptr_t>(memory.get());
        pool = {memory.get() + (64 - at % 64) % 64, layout.pool_bytes()};
        backend = make_cpu_backend(plan, options, pool).value();
    }
    [[nodiscard]] uint32_t vocab() const { return backend->shape().vocab; }

    /// Runs slices given as (tokens, position, blocks, logits).
    struct Part {
        std::vector<TokenId> tokens;
        uint32_t position = 0;
        std::vector<BlockId> blocks;
        bool logits = true;
    };
    std::vector<std::vector<float>> run(const std::vector<Part>& parts,
                                        const std::function<void(uint32_t)>& layer_done = {}) {
        std::vector<TokenId> tokens;
        std::vector<Slice> slices;
        size_t wanted = 0;
        for (const Part& p : parts) {
            tokens.insert(tokens.end(), p.tokens.begin(), p.tokens.end());
            slices.push_back(
                {static_cast<uint32_t>(p.tokens.size()), p.position, p.blocks, p.logits});
            wanted += p.logits ? 1 : 0;
        }
        std::vector<float> flat(wanted * vocab());
        const auto ok = backend->forward({tokens, slices}, flat, layer_done);
        if (!ok) return {};
        std::vector<std::vector<float>> out;
        for (size_t i = 0; i < wanted; ++i)
            out.emplace_back(flat.begin() + static_cast<ptrdiff_t>(i * vocab()),
                             flat.begin() + static_cast<ptrdiff_t>((i + 1) * vocab()));
        return out;
    }
    /// The bytes of one block's page.
    [[nodiscard]] std::vector<std::byte> page(uint32_t layer, bool v, BlockId block) const {
        const auto bytes = pool.subspan(layout.page_offset(layer, v, block), layout.page_bytes());
        return {bytes.begin(), bytes.end()};
    }
};

[[nodiscard]] inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

[[nodiscard]] inline std::vector<TokenId> random_tokens(Rng& rng, size_t n, uint32_t vocab) {
    std::vector<TokenId> out(n);
    for (auto& t : out) t = static_cast<TokenId>(rng.below(vocab));
    return out;
}

}  // namespace baton::backend::test
