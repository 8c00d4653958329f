#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "baton/backend/backend.hpp"
#include "unit/fake_model.hpp"

namespace baton::engine::fake {

using namespace fake_model;

inline kv::PoolLayout layout(uint32_t blocks, uint32_t block_tokens) {
    kv::PoolLayout l;
    l.order = kv::PoolOrder::kBlockFirst;
    l.dtype = 1;
    l.layers = 2;
    l.kv_heads = 1;
    l.head_dim = 8;
    l.block_tokens = block_tokens;
    l.blocks = blocks;
    l.page_format = "fake-1";
    return l;
}

/// The model over a paged pool: each row is a digest of all tokens up to it, and must follow the row before it.
class Model {
  public:
    Model(uint32_t blocks, uint32_t block_tokens) : block_tokens_(block_tokens), rows_(size_t{blocks} * block_tokens) {}
    /// Computes a slice's rows; the last one's digest.
    uint64_t run(const backend::Slice& slice, std::span<const TokenId> tokens) {
        uint64_t state = slice.position == 0 ? 0 : row(slice, slice.position - 1);
        for (uint32_t i = 0; i < slice.tokens; ++i) row(slice, slice.position + i) = state = mix(state, tokens[i]);
        return state;
    }

  private:
    uint64_t& row(const backend::Slice& slice, uint32_t position) {
        return rows_.at(size_t{slice.blocks[position / block_tokens_]} * block_tokens_ + position % block_tokens_);
    }
    uint32_t block_tokens_;
    std::vector<uint64_t> rows_;
};

/// What a test sees of a device, and how it holds it up. Lives longer than the device. Any thread.
struct Control {
    void hold() { set([&] { held = true; }); }
    void release() { set([&] { held = false; }); }
    /// Lets `n` more steps finish while it is held.
    void let(uint32_t n) { set([&] { allowed += n; }); }
    template <class Condition>
    bool wait_until(Condition condition) {
        std::unique_lock lock(mutex);
        return changed.wait_for(lock, std::chrono::seconds(20), condition);
    }
    template <class Change>
    void set(Change change) {
        {
            const std::lock_guard lock(mutex);
            change();
        }
        changed.notify_all();
    }

    std::mutex mutex;
    std::condition_variable changed;
    bool held = false;
    uint32_t allowed = 0;
    uint32_t submitted = 0, collected = 0, most_under_way = 0, pending_rows = 0;
    uint32_t fail_submit_at = UINT32_MAX, fail_collect_at = UINT32_MAX, forget_a_token_at = UINT32_MAX;
    bool waited_for = false;  ///< somebody waits in collect
    bool destroyed = false;
    std::vector<std::string> wrong;  ///< breaches of the contract
    std::vector<uint32_t> primed_at;  ///< steps collected at each prime
    std::vector<uint64_t*> progress;
    std::vector<uint64_t> progress_bases;
};

/// Computes at once, and gives results when the test lets it.
class Device final : public backend::DeviceBackend {
  public:
    Device(Control& control, uint32_t blocks, uint32_t block_tokens, uint32_t states)
        : control_(control), layout_(layout(blocks, block_tokens)), model_(blocks, block_tokens), last_(states), known_(states) {
        shape_.vocab = kVocabulary;
        shape_.layers = layout_.layers;
    }
    ~Device() override {
        control_.set([&] { control_.destroyed = true; });
    }
    const backend::ModelShape& shape() const override { return shape_; }
    const kv::PoolLayout& kv_layout() const override { return layout_; }
    std::string describe() const override { return "fake"; }
    uint64_t memory_bytes() const override { return 0; }
    Expected<void> share_words(std::span<std::byte>) override { return {}; }
    backend::DevicePool& pool() override { std::abort(); }

    Expected<void> submit(const backend::Batch& batch) override {
        const std::lock_guard lock(control_.mutex);
        if (control_.submitted++ == control_.fail_submit_at) return fail(ErrorCode::kInternal, "planted");
        const auto under_way = static_cast<uint32_t>(results_.size()) + 1;
        control_.most_under_way = std::max(control_.most_under_way, under_way);
        if (under_way > kDepth) control_.wrong.emplace_back("too many steps under way");
        results_.push_back(run(batch));
        control_.changed.notify_all();
        return {};
    }
    Expected<void> collect(std::vector<wire::Token>& tokens) override {
        std::unique_lock lock(control_.mutex);
        if (results_.empty()) control_.wrong.emplace_back("nothing to collect");
        control_.waited_for = true;
        control_.changed.notify_all();
        control_.changed.wait(lock, [&] { return open(); });
        control_.waited_for = false;
        if (control_.held) --control_.allowed;
        tokens = std::move(results_.front());
        results_.pop_front();
        if (control_.collected++ == control_.fail_collect_at) return fail(ErrorCode::kInternal, "planted");
        if (control_.collected - 1 == control_.forget_a_token_at && !tokens.empty()) tokens.pop_back();
        control_.changed.notify_all();
        return {};
    }
    void prime() override {
        control_.set([&] {
            if (results_.empty()) control_.wrong.emplace_back("primed while no step is under way");
            control_.primed_at.push_back(control_.collected);
        });
    }
    bool ready() const override {
        const std::lock_guard lock(control_.mutex);
        return !results_.empty() && open();
    }

  private:
    [[nodiscard]] bool open() const { return !control_.held || control_.allowed > 0; }

    std::vector<wire::Token> run(const backend::Batch& batch) {
        std::vector<wire::Token> out;
        size_t first = 0;
        for (const backend::Slice& s : batch.slices) {
            auto tokens = batch.tokens.subspan(first, s.tokens);
            first += s.tokens;
            if (s.progress) control_.progress.push_back(s.progress), control_.progress_bases.push_back(s.progress_base);
            if (s.state >= last_.size()) control_.wrong.emplace_back("a state row out of range");
            if (s.pending > 0) {
                ++control_.pending_rows;
                if (s.tokens != 1) control_.wrong.emplace_back("a pending slice of several rows");
                tokens = std::span<const TokenId>(&last_[s.state], 1);
            }
            const uint64_t state = model_.run(s, tokens);
            if (!s.logits) continue;
            if (!s.sequence) control_.wrong.emplace_back("nothing to sample by");
            // The device's own count of what it sampled goes on where `pending` says so, and starts anew where not.
            const auto emitted = static_cast<uint32_t>(s.sequence->emitted.size());
            if (s.pending > 0 && known_[s.state] != emitted + 1) control_.wrong.emplace_back("a state row of another sequence");
            known_[s.state] = emitted + s.pending + 1;
            wire::Token token;
            token.id = last_[s.state] = next_token(state);
            out.push_back(std::move(token));
        }
        return out;
    }

    Control& control_;
    backend::ModelShape shape_;
    kv::PoolLayout layout_;
    Model model_;
    std::vector<TokenId> last_;
    std::vector<uint32_t> known_;
    std::deque<std::vector<wire::Token>> results_;
};

/// The same model as a CPU backend, with logits that name one token.
class Cpu final : public backend::Backend {
  public:
    Cpu(uint32_t blocks, uint32_t block_tokens, std::atomic<uint32_t>& fail_at)
        : layout_(layout(blocks, block_tokens)), model_(blocks, block_tokens), fail_at_(fail_at) {
        shape_.vocab = kVocabulary;
        shape_.layers = layout_.layers;
    }
    const backend::ModelShape& shape() const override { return shape_; }
    const kv::PoolLayout& kv_layout() const override { return layout_; }
    std::string describe() const override { return "fake"; }
    Expected<void> forward(const backend::Batch& batch, std::span<float> logits,
                           const std::function<void(uint32_t)>& layer_done) override {
        if (steps_++ == fail_at_) return fail(ErrorCode::kInternal, "planted");
        size_t first = 0, row = 0;
        for (const backend::Slice& s : batch.slices) {
            const uint64_t state = model_.run(s, batch.tokens.subspan(first, s.tokens));
            first += s.tokens;
            if (!s.logits) continue;
            const auto out = logits.subspan(row++ * kVocabulary, kVocabulary);
            std::ranges::fill(out, 0.0f);
            out[static_cast<size_t>(next_token(state))] = 1.0f;
        }
        for (uint32_t layer = 0; layer < shape_.layers; ++layer) layer_done(layer);
        return {};
    }

  private:
    backend::ModelShape shape_;
    kv::PoolLayout layout_;
    Model model_;
    std::atomic<uint32_t>& fail_at_;
    uint32_t steps_ = 0;
};

}  // namespace baton::engine::fake
