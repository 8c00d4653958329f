// The numerics contract: logits and KV bytes of a sequence are bitwise the same whatever else is in
// the batch, however its prompt was chunked and however many threads run.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "harness.hpp"

namespace baton::backend::test {
namespace {

using tensor::DType;

struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    uint32_t done = 0;
};

/// What one sequence leaves: logits after each of its last `tail` tokens, and its pages' used
/// bytes.
struct Trace {
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<std::byte>> pages;
};

class Scenario {
  public:
    Scenario(const Plan& plan, uint64_t seed, size_t sequences, uint32_t tokens_max,
             uint32_t block_tokens)
        : plan_(plan), block_tokens_(block_tokens) {
        Rng rng(seed);
        for (size_t i = 0; i < sequences; ++i)
            prompts_.push_back(random_tokens(rng, 2 + rng.below(tokens_max - 1), plan.shape.vocab));
    }
    /// Each prompt on its own, one thread, one chunk, and then its last kTail tokens again one by
    /// one.
    [[nodiscard]] std::vector<Trace> alone(const CpuOptions& options) {
        std::vector<Trace> out;
        for (const auto& prompt : prompts_) {
            CpuOptions o = options;
            o.threads = 1;
            Harness h(plan_, o);
            Sequence s{prompt, take(0, prompt.size()), 0};
            Trace t;
            const uint32_t first = head_of(prompt);
            step(h, {{&s, first}}, {&t});
            while (s.done < prompt.size()) step(h, {{&s, 1}}, {&t});
            finish(h, s, t);
            out.push_back(std::move(t));
        }
        return out;
    }
    /// All prompts together, in random chunks over shuffled blocks of a dirty pool.
    [[nodiscard]] std::vector<Trace> mixed(CpuOptions options, uint64_t seed, uint32_t threads) {
        Rng rng(seed);
        options.threads = threads;
        Harness h(plan_, options);
        // Finite bytes left by sequences that are gone; NaN too, which must not leak either.
        for (size_t i = 0; i < h.pool.size(); ++i) h.pool[i] = static_cast<std::byte>(rng.next());
        std::vector<BlockId> free(options.blocks);
        std::iota(free.begin(), free.end(), 0u);
        for (size_t i = free.size(); i > 1; --i)
            std::swap(free[i - 1], free[rng.below(static_cast<uint32_t>(i))]);
        std::vector<Sequence> sequences;
        for (const auto& p : prompts_) {
            const size_t n = (p.size() + block_tokens_ - 1) / block_tokens_;
            sequences.push_back({p, {free.end() - static_cast<ptrdiff_t>(n), free.end()}, 0});
            free.resize(free.size() - n);
        }
        std::vector<Trace> traces(prompts_.size());
        bool open = true;
        while (open) {
            open = false;
            std::vector<std::pair<Sequence*, uint32_t>> parts;
            std::vector<Trace*> into;
            uint32_t budget = options.max_batch_tokens;
            const size_t start = rng.below(static_cast<uint32_t>(sequences.size()));
            for (size_t i = 0; i < sequences.size(); ++i) {
                const size_t n = (start + i) % sequences.size();
                Sequence& s = sequences[n];
                const auto left = static_cast<uint32_t>(s.tokens.size()) - s.done;
                if (left == 0) continue;
                open = true;
                if (budget == 0 || rng.below(4) == 0) continue;
                // Chunks end at the head so that every tail token gets its logits.
                const uint32_t head = head_of(s.tokens);
                const uint32_t most = s.done < head ? head - s.done : 1;
                const uint32_t chunk =
                    std::min(budget, rng.below(3) == 0 ? most : 1 + rng.below(most));
                budget -= chunk;
                parts.emplace_back(&s, chunk);
                into.push_back(&traces[n]);
            }
            if (!parts.empty()) step(h, parts, into);
        }
        for (size_t i = 0; i < traces.size(); ++i) finish(h, sequences[i], traces[i]);
        return traces;
    }

  private:
    static constexpr size_t kTail = 4;

    static uint32_t head_of(const std::vector<TokenId>& p) {
        return static_cast<uint32_t>(p.size() - std::min(kTail, p.size() - 1));
    }
    std::vector<BlockId> take(uint32_t first, size_t tokens) const {
        std::vector<BlockId> out((tokens + block_tokens_ - 1) / block_tokens_);
        std::iota(out.begin(), out.end(), first);
        return out;
    }
    static void step(Harness& h, const std::vector<std::pair<Sequence*, uint32_t>>& parts,
                     const std::vector<Trace*>& into) {
        std::vector<Harness::Part> batch;
        for (const auto& [s, n] : parts) {
            const bool logits = s->done + n >= head_of(s->tokens);
            batch.push_back({{s->tokens.begin() + s->done, s->tokens.begin() + s->done + n},
                             s->done,
                             s->blocks,
                             logits});
            s->done += n;
        }
        auto logits = h.run(batch);
        size_t next = 0;
        for (size_t i = 0; i < batch.size(); ++i)
            if (batch[i].logits) into[i]->logits.push_back(std::move(logits.at(next++)));
    }
    /// Collects the bytes of the sequence's own tokens in full blocks (the rest of a block may hold
    /// anything).
    void finish(const Harness& h, const Sequence& s, Trace& t) const {
        for (uint32_t l = 0; l < h.layout.layers; ++l)
            for (const bool v : {false, true})
                for (size_t b = 0; b < s.tokens.size() / block_tokens_; ++b)
                    t.pages.push_back(h.page(l, v, s.blocks[b]));
    }

    const Plan& plan_;
    uint32_t block_tokens_;
    std::vector<std::vector<TokenId>> prompts_;
};

void expect_same(const std::vector<Trace>& want, const std::vector<Trace>& got,
                 const std::string& what) {
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(want[i].logits.size(), got[i].logits.size()) << what;
        for (size_t j = 0; j < want[i].logits.size(); ++j)
            EXPECT_TRUE(same_bits(want[i].logits[j], got[i].logits[j]))
                << what << " sequence " << i << " logits " << j;
        EXPECT_TRUE(want[i].pages == got[i].pages) << what << " sequence " << i << " pages";
    }
}

CpuOptions contract_options(const std::string& isa, bool kv_f32, uint32_t block_tokens,
                            uint32_t blocks) {
    CpuOptions o;
    o.isa = isa;
    o.kv_f32 = kv_f32;
    o.block_tokens = block_tokens;
    o.blocks = blocks;
    o.max_batch_tokens = 300;
    o.max_batch_slices = 8;
    return o;
}

TEST(NumericsContract, HoldsForEveryTypeAndIsa) {
    for (const DType type : kAllTypes) {
        const Plan plan =
            make_plan({type, wide_shape(), type == DType::kQ5_0, type == DType::kBF16, 11});
        for (const auto& isa : available_isas()) {
            Scenario scenario(plan, 21 + static_cast<uint64_t>(type), 5,
                              isa == "portable" ? 30 : 90, 16);
            const CpuOptions o = contract_options(isa, type == DType::kF32, 16, 64);
            const auto want = scenario.alone(o);
            for (uint32_t threads = 1; threads <= 4; ++threads)
                expect_same(
                    want, scenario.mixed(o, threads, threads),
                    std::string(to_string(type)) + " " + isa + " " + std::to_string(threads));
        }
    }
}

// Sanitized builds take fewer block sizes and shorter sequences, still more than one segment.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint32_t kBlockTokens[] = {7, 16};
constexpr uint32_t kLongest = 320;
#else
constexpr uint32_t kBlockTokens[] = {1, 7, 16, 24, 32, 64};
constexpr uint32_t kLongest = 900;
#endif

TEST(NumericsContract, HoldsOverLongContextsAndOddBlocks) {
    for (const uint32_t block_tokens : kBlockTokens) {
        const Plan plan =
            make_plan({DType::kF32, {1, 32, 6, 2, 34, 32, 20, 2048}, false, false, block_tokens});
        for (const auto& isa : available_isas()) {
            for (const bool kv_f32 : {false, true}) {
                Scenario scenario(plan, block_tokens, 3, isa == "portable" ? 320 : kLongest,
                                  block_tokens);
                const CpuOptions o =
                    contract_options(isa, kv_f32, block_tokens, 3000 / block_tokens + 8);
                const auto want = scenario.alone([&] {
                    CpuOptions whole = o;
                    whole.max_batch_tokens = 1024;
                    return whole;
                }());
                for (const uint32_t threads : {1u, 3u})
                    expect_same(want, scenario.mixed(o, threads, threads),
                                isa + " block " + std::to_string(block_tokens) + " " +
                                    std::to_string(threads));
            }
        }
    }
}

}  // namespace
}  // namespace baton::backend::test
