// The last layer computes only rows whose logits are wanted. Sequences that were given token by
// token, each with its logits, never leave a row out: what they give is what any other batch must
// give.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backend/program.hpp"
#include "harness.hpp"

namespace baton::backend::test {
namespace {

using tensor::DType;

template <class T>
size_t index_of(const std::vector<Step>& layer) {
    const auto at = std::ranges::find_if(
        layer, [](const Step& step) { return std::holds_alternative<T>(step); });
    return static_cast<size_t>(at - layer.begin());
}

/// Ways the last layer may go on behind its attention.
enum class Ending : uint8_t {
    kUsual,
    kNothing,
    kNoMlp,
    kParallel,       ///< gate and up read what was normalised ahead of attention
    kSwigluBehind,   ///< gate and up lie ahead of attention
    kTwoAttentions,  ///< the second reads what comes of the first
    kRopeBehind,     ///< needs the rows' positions
    kNoAttention
};
constexpr Ending kEndings[] = {Ending::kUsual,      Ending::kNothing,      Ending::kNoMlp,
                               Ending::kParallel,   Ending::kSwigluBehind, Ending::kTwoAttentions,
                               Ending::kRopeBehind, Ending::kNoAttention};

Plan with_ending(Plan plan, Ending ending) {
    std::vector<Step>& layer = plan.layers.back();
    const size_t attention = index_of<Attention>(layer);
    const auto at = [&](size_t i) { return layer.begin() + static_cast<ptrdiff_t>(i); };
    // Behind attention: output product, norm, gate, up, swiglu, down.
    const Step q = layer[1], output = layer[attention + 1], norm = layer[attention + 2];
    switch (ending) {
        case Ending::kUsual:
            break;
        case Ending::kNothing:
            layer.resize(attention + 1);
            break;
        case Ending::kNoMlp:
            layer.resize(attention + 2);
            break;
        case Ending::kParallel:
            layer.erase(at(attention + 2));
            break;
        case Ending::kSwigluBehind: {
            const std::vector<Step> early{layer[attention + 3], layer[attention + 4]};
            layer.erase(at(attention + 2), at(attention + 5));
            layer.insert(at(2), early.begin(), early.end());
            break;
        }
        case Ending::kTwoAttentions: {
            const std::vector<Step> again{norm, q, Attention{}, output};
            layer.insert(at(attention + 2), again.begin(), again.end());
            break;
        }
        case Ending::kRopeBehind: {
            auto more = std::get<MatMul>(output);
            more.in = Slot::kQ;
            const std::vector<Step> again{ApplyRope{}, more};
            layer.insert(at(attention + 2), again.begin(), again.end());
            break;
        }
        case Ending::kNoAttention:
            layer.erase(at(attention));
            break;
    }
    return plan;
}

/// Sequences over blocks of their own, and what they give token by token.
class Sequences {
  public:
    Sequences(const Plan& plan, const CpuOptions& options, Rng& rng,
              const std::vector<size_t>& lengths)
        : plan_(plan), options_(options), whole_(plan, options) {
        BlockId next = 0;
        for (const size_t n : lengths) {
            tokens_.push_back(random_tokens(rng, n, plan.shape.vocab));
            auto& blocks =
                blocks_.emplace_back((n + options.block_tokens - 1) / options.block_tokens);
            std::iota(blocks.begin(), blocks.end(), next);
            next += static_cast<BlockId>(blocks.size());
            auto& logits = logits_.emplace_back();
            for (uint32_t t = 0; t < n; ++t)
                logits.push_back(whole_.run({{{tokens_.back()[t]}, t, blocks, true}}).at(0));
        }
    }
    /// All tokens in random batches, of which each slice asks for logits in `asks` of 4 cases.
    void expect_same_in_batches(Rng& rng, uint32_t asks, const std::string& what) const {
        Harness h(plan_, options_);
        std::vector<uint32_t> done(tokens_.size(), 0);
        while (!finished(done)) {
            std::vector<Harness::Part> parts;
            std::vector<const std::vector<float>*> want;
            uint32_t budget = options_.max_batch_tokens;
            for (size_t i = 0; i < tokens_.size(); ++i) {
                const uint32_t left = static_cast<uint32_t>(tokens_[i].size()) - done[i];
                if (left == 0 || budget == 0 || rng.below(4) == 0) continue;
                // A token as in decoding, what fits, or a part.
                const uint32_t most = std::min(left, budget), kind = rng.below(3);
                const uint32_t n = kind == 0 ? 1 : kind == 1 ? most : 1 + rng.below(most);
                const bool logits = rng.below(4) < asks;
                const auto from = tokens_[i].begin() + done[i];
                parts.push_back({{from, from + n}, done[i], blocks_[i], logits});
                done[i] += n;
                budget -= n;
                if (logits) want.push_back(&logits_[i][done[i] - 1]);
            }
            if (!parts.empty()) step(h, parts, want, what);
        }
        EXPECT_TRUE(std::ranges::equal(h.pool, whole_.pool)) << what;
    }

  private:
    [[nodiscard]] bool finished(const std::vector<uint32_t>& done) const {
        for (size_t i = 0; i < done.size(); ++i)
            if (done[i] < tokens_[i].size()) return false;
        return true;
    }
    void step(Harness& h, const std::vector<Harness::Part>& parts,
              const std::vector<const std::vector<float>*>& want, const std::string& what) const {
        std::vector<uint32_t> layers, all(plan_.shape.layers);
        std::iota(all.begin(), all.end(), 0u);
        const auto got = h.run(parts, [&](uint32_t layer) { layers.push_back(layer); });
        EXPECT_EQ(layers, all) << what;
        ASSERT_EQ(got.size(), want.size()) << what;
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], *want[i])) << what;
    }

    const Plan& plan_;
    CpuOptions options_;
    Harness whole_;
    std::vector<std::vector<TokenId>> tokens_;
    std::vector<std::vector<BlockId>> blocks_;
    std::vector<std::vector<std::vector<float>>> logits_;  ///< after each token of each sequence
};

CpuOptions last_layer_options(const std::string& isa, uint32_t threads) {
    CpuOptions o;
    o.isa = isa;
    o.threads = threads;
    o.blocks = 64;
    o.max_batch_tokens = 96;
    o.max_batch_slices = 8;
    return o;
}

// Sanitized builds take fewer types.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr DType kTypes[] = {DType::kQ4_1};
#else
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kQ4_1, DType::kQ6_K};
#endif

TEST(LastLayer, WantedRowsAndKvAreThoseOfWholeLayers) {
    Rng rng(7);
    for (const DType type : kTypes) {
        for (const Ending ending : kEndings) {
            const Plan plan = with_ending(
                make_plan({type, wide_shape(), type == DType::kF32, type == DType::kQ4_1, 40}),
                ending);
            for (const auto& isa : available_isas()) {
                const CpuOptions o = last_layer_options(isa, 1 + rng.below(2));
                const size_t longest = isa == "portable" ? 24 : 70;
                const Sequences sequences(plan, o, rng, {longest, 3, 1, longest / 2, 17});
                for (const uint32_t asks : {0u, 1u, 2u, 4u})
                    sequences.expect_same_in_batches(rng, asks,
                                                     std::string(to_string(type)) + " ending " +
                                                         std::to_string(static_cast<int>(ending)) +
                                                         " " + isa + " asks " +
                                                         std::to_string(asks));
            }
        }
    }
}

// More than one segment, which tasks of one row share; odd blocks.
TEST(LastLayer, WantedRowsAttendOverLongContexts) {
    Rng rng(8);
    for (const uint32_t block_tokens : {7u, 16u}) {
        const Plan plan =
            make_plan({DType::kF32, {2, 32, 6, 2, 34, 32, 20, 2048}, false, false, block_tokens});
        for (const auto& isa : available_isas()) {
            if (isa == "portable") continue;  // slow, and the tasks are the same
            for (const bool kv_f32 : {false, true}) {
                CpuOptions o = last_layer_options(isa, 3);
                o.block_tokens = block_tokens;
                o.blocks = 1200 / block_tokens;
                o.max_batch_tokens = 400;
                o.kv_f32 = kv_f32;
                const Sequences sequences(plan, o, rng, {640, 300});
                for (const uint32_t asks : {0u, 2u, 4u})
                    sequences.expect_same_in_batches(
                        rng, asks, isa + " block " + std::to_string(block_tokens));
            }
        }
    }
}

TEST(LastLayer, IsReportedWithItsPagesWhereNoLogitsAreWanted) {
    const Plan plan = make_plan({DType::kQ4_1, wide_shape(), false, false, 9});
    Rng rng(9);
    const auto tokens = random_tokens(rng, 45, plan.shape.vocab);
    const std::vector<BlockId> blocks{2, 0, 1};
    for (const uint32_t threads : {1u, 2u}) {
        Harness whole(plan, last_layer_options("", threads)), h(plan, whole.options);
        for (uint32_t t = 0; t < tokens.size(); ++t) whole.run({{{tokens[t]}, t, blocks, true}});
        std::vector<uint32_t> layers;
        h.run({{{tokens.begin(), tokens.begin() + 20}, 0, blocks, false}});
        h.run({{{tokens.begin() + 20, tokens.end()}, 20, blocks, false}}, [&](uint32_t layer) {
            layers.push_back(layer);
            for (const bool v : {false, true})
                for (const BlockId b : blocks)
                    EXPECT_EQ(h.page(layer, v, b), whole.page(layer, v, b));
        });
        EXPECT_EQ(layers, (std::vector<uint32_t>{0, 1}));
    }
}

TEST(Program, NamesWhatTheTailOfTheLastLayerReads) {
    using S = std::vector<Slot>;
    const auto reads = [](Ending ending) -> std::optional<S> {
        const Plan plan = with_ending(make_plan({}), ending);
        const auto program = lower(plan);
        if (!program->tail) return std::nullopt;
        return program->tail->reads;
    };
    EXPECT_EQ(reads(Ending::kUsual), (S{Slot::kHidden, Slot::kAttn}));
    EXPECT_EQ(reads(Ending::kNothing), (S{Slot::kHidden}));
    EXPECT_EQ(reads(Ending::kNoMlp), (S{Slot::kHidden, Slot::kAttn}));
    EXPECT_EQ(reads(Ending::kParallel), (S{Slot::kHidden, Slot::kNorm, Slot::kAttn}));
    EXPECT_EQ(reads(Ending::kSwigluBehind),
              (S{Slot::kHidden, Slot::kAttn, Slot::kGate, Slot::kUp}));
    EXPECT_EQ(reads(Ending::kTwoAttentions), (S{Slot::kHidden, Slot::kAttn}));
    EXPECT_FALSE(reads(Ending::kRopeBehind));
    EXPECT_FALSE(reads(Ending::kNoAttention));
}

}  // namespace
}  // namespace baton::backend::test
