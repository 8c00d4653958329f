#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "baton/backend/backend.hpp"

namespace baton::model::test {

/// One sequence on a CPU backend of its own, with f32 KV.
class CpuRunner {
  public:
    static Expected<std::unique_ptr<CpuRunner>> make(const backend::Plan& plan,
                                                     const std::string& isa,
                                                     uint32_t positions = 256) {
        auto out = std::make_unique<CpuRunner>();
        backend::CpuOptions options;
        options.threads = 1;
        options.kv_f32 = true;
        options.isa = isa;
        options.max_batch_tokens = positions;
        options.block_tokens = kBlockTokens;
        options.blocks = (positions + kBlockTokens - 1) / kBlockTokens;
        BATON_TRY_ASSIGN(const kv::PoolLayout layout, backend::cpu_kv_layout(plan.shape, options));
        const size_t bytes = (layout.pool_bytes() + 63) / 64 * 64;
        out->pool_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
        std::fill_n(out->pool_.get(), bytes, std::byte{0});
        BATON_TRY_ASSIGN(out->backend_,
                         backend::make_cpu_backend(plan, options, {out->pool_.get(), bytes}));
        // Blocks in falling order, so that nothing works only because block i sits at i.
        out->blocks_.resize(options.blocks);
        std::iota(out->blocks_.rbegin(), out->blocks_.rend(), BlockId{0});
        return out;
    }

    [[nodiscard]] uint32_t vocab() const { return backend_->shape().vocab; }
    [[nodiscard]] std::string describe() const { return backend_->describe(); }

    /// Runs `tokens` after what came before; the logits of the last.
    Expected<std::vector<float>> step(std::span<const TokenId> tokens) {
        std::vector<float> logits(vocab());
        const auto n = static_cast<uint32_t>(tokens.size());
        const size_t used = (position_ + n + kBlockTokens - 1) / kBlockTokens;
        const backend::Slice slice{n, position_, std::span(blocks_).first(used), true};
        const backend::Batch batch{tokens, {&slice, 1}};
        BATON_TRY(backend_->forward(batch, logits, [](uint32_t) {}));
        position_ += n;
        return logits;
    }

  private:
    static constexpr uint32_t kBlockTokens = 16;
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<std::byte, Free> pool_;
    std::vector<BlockId> blocks_;
    uint32_t position_ = 0;
    std::unique_ptr<backend::Backend> backend_;  // after the pool it writes to
};

}  // namespace baton::model::test
