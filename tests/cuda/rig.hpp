#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "unit/backend/synthetic.hpp"

namespace baton::backend::cuda::test {

/// Skips a test, aloud, where no GPU can be used.
#define BATON_NEEDS_GPU()                                                                                 \
    do {                                                                                                  \
        int baton_gpus = 0;                                                                               \
        const cudaError_t baton_gpu_status = cudaGetDeviceCount(&baton_gpus);                             \
        if (baton_gpu_status != cudaSuccess || baton_gpus == 0)                                           \
            GTEST_SKIP() << "no GPU: " << cudaGetErrorString(baton_gpu_status);                           \
    } while (false)

/// A sequence as an engine holds it.
struct Seq {
    wire::Sequence wire;            ///< greedy unless a test changes it
    std::vector<TokenId> ids;       ///< prompt and emitted
    std::vector<BlockId> blocks;
    uint32_t done = 0;              ///< positions computed
    uint32_t state = 0;
};

/// Rows of one sequence in a step.
struct Part {
    Seq* seq;
    uint32_t tokens;
    bool logits = true;
};

/// A backend with the little bookkeeping an engine does.
class Rig {
  public:
    Rig(const Plan& plan, CudaOptions options) {
        options.keep_logits = options.noise = true;
        if (options.memory_bytes == 0) options.memory_bytes = uint64_t{2} << 30;
        auto made = CudaBackend::make(plan, options);
        EXPECT_TRUE(made) << (made ? "" : made.error().message);
        if (made) backend_ = std::move(*made);
        block_tokens_ = options.block_tokens;
        slices_max_ = options.max_batch_slices;
    }
    [[nodiscard]] explicit operator bool() const { return backend_ != nullptr; }
    [[nodiscard]] CudaBackend& backend() { return *backend_; }
    [[nodiscard]] uint32_t vocab() const { return backend_->shape().vocab; }

    /// A new sequence with room for `room` positions; its blocks are not in order.
    Seq add(std::vector<TokenId> prompt, uint32_t room) {
        Seq s;
        s.wire.prompt = prompt;
        s.wire.ref.id.value = ++sequences_;
        s.wire.sampling.temperature = 0;
        s.wire.sampling.max_tokens = 1 << 20;
        s.ids = std::move(prompt);
        for (uint32_t i = 0; i < room; i += block_tokens_) s.blocks.push_back(take_block());
        s.state = next_state_++ % slices_max_;
        return s;
    }
    BlockId take_block() {
        // Steps of a number prime to the pool's size go through all blocks.
        const uint32_t blocks = backend_->kv_layout().blocks;
        uint32_t step = blocks / 3 * 2 + 1;
        while (std::gcd(step, blocks) != 1) ++step;
        block_ = (block_ + step) % blocks;
        return block_;
    }

    /// Submits a step without waiting; `pending` rows take the token the step before sampled.
    Expected<void> submit(const std::vector<Part>& parts, uint32_t pending = 0) {
        std::vector<TokenId> tokens;
        std::vector<Slice> slices;
        for (const Part& p : parts) {
            Slice s;
            s.tokens = p.tokens;
            s.position = p.seq->done;
            s.blocks = p.seq->blocks;
            s.logits = p.logits;
            s.sequence = &p.seq->wire;
            s.state = p.seq->state;
            s.pending = pending;
            for (uint32_t i = 0; i < p.tokens; ++i)
                tokens.push_back(p.seq->done + i < p.seq->ids.size() ? p.seq->ids[p.seq->done + i] : -7);
            p.seq->done += p.tokens;
            slices.push_back(s);
        }
        return backend_->submit({tokens, slices});
    }
    /// Runs a step; gives the logits of each slice that wants some.
    std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
        const auto ok = submit(parts);
        EXPECT_TRUE(ok) << (ok ? "" : ok.error().message);
        if (!ok) return {};
        return logits();
    }
    std::vector<std::vector<float>> logits() {
        tokens_.clear();
        const auto ok = backend_->collect(tokens_);
        EXPECT_TRUE(ok) << (ok ? "" : ok.error().message);
        std::vector<float> flat;
        const auto got = backend_->debug_logits(flat);
        EXPECT_TRUE(got) << (got ? "" : got.error().message);
        std::vector<std::vector<float>> out;
        for (size_t at = 0; at < flat.size(); at += vocab())
            out.emplace_back(flat.begin() + static_cast<ptrdiff_t>(at), flat.begin() + static_cast<ptrdiff_t>(at + vocab()));
        return out;
    }
    /// Of the step collected last.
    [[nodiscard]] const std::vector<wire::Token>& tokens() const { return tokens_; }
    /// Gives a sequence its next token.
    static void push(Seq& s, TokenId id) {
        s.ids.push_back(id);
        s.wire.emitted.push_back(id);
    }

  private:
    std::unique_ptr<CudaBackend> backend_;
    uint32_t block_tokens_ = 0;
    uint32_t slices_max_ = 0;
    uint32_t next_state_ = 0;
    uint64_t sequences_ = 0;
    BlockId block_ = 0;
    std::vector<wire::Token> tokens_;
};

/// ‖a - b‖ / ‖b‖; not a number where a is.
inline double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return std::nan("");
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += b[i] * b[i];
    }
    return std::sqrt(difference / norm);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<TokenId> random_ids(backend::test::Rng& rng, size_t n, uint32_t vocab) {
    std::vector<TokenId> out(n);
    for (TokenId& t : out) t = static_cast<TokenId>(rng.below(vocab));
    return out;
}

}  // namespace baton::backend::cuda::test
