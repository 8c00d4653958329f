// Host time of a decode step: the engine over a device that has every result at once. What it takes per step must hide
// behind the device's step.
//   engine_bench [steps [KiB]]   KiB of other memory are read between two steps, as what else runs on a core does to its caches; the engine
//                                then waits a little longer, as it does between its nap and a step's end
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <vector>

#include "baton/engine/engine.hpp"

namespace baton {
namespace {

constexpr uint32_t kVocabulary = 151'936;

std::vector<uint64_t> other;  ///< memory that is read between steps

constexpr int kAsked = 400;  ///< the device says that it is ready when it was asked so often: some looks without a pause

/// Gives token 7 for every row asked for; at once, or where other memory is read, a little after that.
class InstantDevice final : public backend::DeviceBackend {
  public:
    InstantDevice(const kv::PoolLayout& layout, uint64_t& rows) : layout_(layout), rows_(rows) { shape_.vocab = kVocabulary; }
    const backend::ModelShape& shape() const override { return shape_; }
    const kv::PoolLayout& kv_layout() const override { return layout_; }
    std::string describe() const override { return "instant"; }
    uint64_t memory_bytes() const override { return 0; }
    Expected<void> share_words(std::span<std::byte>) override { return {}; }
    backend::DevicePool& pool() override { std::abort(); }
    bool ready() const override {
        if (other.empty()) return true;
        const int asked = asked_++;
        if (asked == 1)  // the engine waits meanwhile: that is not its own time
            for (size_t i = 0; i < other.size(); i += 8) sum_ += other[i];
        if (asked == kAsked + 1) asked_ = 0;
        return asked >= kAsked;
    }
    Expected<void> submit(const backend::Batch& batch) override {
        uint32_t rows = 0;
        for (const backend::Slice& s : batch.slices) rows += s.logits ? 1 : 0;
        wanted_[submitted_++ % kDepth] = rows;
        return {};
    }
    Expected<void> collect(std::vector<wire::Token>& tokens) override {
        const uint32_t rows = wanted_[collected_++ % kDepth];
        tokens.resize(rows);
        for (wire::Token& t : tokens) t.id = 7;
        rows_ += rows;
        return {};
    }

  private:
    backend::ModelShape shape_;
    kv::PoolLayout layout_;
    uint64_t& rows_;
    uint32_t wanted_[kDepth] = {};
    uint32_t submitted_ = 0, collected_ = 0;
    mutable int asked_ = 0;
    mutable uint64_t sum_ = 0;
};

/// Processor time of the calling thread: other programs on the machine do not count.
double thread_us() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

/// Microseconds of a decode step with `batch` sequences of 1,000 tokens each.
void measure(uint32_t batch, uint32_t block_tokens, uint32_t steps) {
    kv::PoolLayout layout;
    layout.order = kv::PoolOrder::kBlockFirst;
    layout.dtype = 1;
    layout.layers = layout.kv_heads = 1;
    layout.head_dim = 2;
    layout.page_format = "none";
    layout.block_tokens = block_tokens;
    layout.blocks = batch * ((1'000 + steps) / block_tokens + 2);
    auto words = xavier::SharedPool::create_words(layout, 8);
    if (!words) return static_cast<void>(std::fprintf(stderr, "%s\n", words.error().message.c_str()));
    engine::Engine::Options options;
    options.core.role = Role::kHybrid;
    options.core.block_tokens = block_tokens;
    options.core.blocks = layout.blocks;
    options.core.max_model_len = 1'000 + steps + 8;
    options.core.max_running = batch;
    options.core.step_tokens = 2'048;
    options.stats_every_ms = 1;
    options.spin_us = 1'000'000;
    std::promise<void> ended;
    uint64_t rows = 0, counted = 0;
    uint32_t left = batch;
    uint32_t begun = 0;
    double begin = 0, end = 0;
    engine::Engine::Callbacks callbacks;
    wire::ReplicaStats latest, first, last;
    callbacks.stats = [&](const wire::ReplicaStats& s) { latest = s; };
    callbacks.act = [&](pd::Action& action) {
        const auto* m = std::get_if<pd::ToSupervisor>(&action);
        const auto* tokens = m ? std::get_if<wire::TokenBatch>(&m->message) : nullptr;
        if (!tokens) return;
        for (const auto& item : tokens->items) {
            if (item.first_index == 8 && ++begun == batch) begin = thread_us(), rows = 0, first = latest;  // prompts are done
            if (item.finish == wire::Finish::kNone) continue;
            if (left == batch) end = thread_us(), last = latest;
            if (--left == 0) ended.set_value();
        }
        if (left == batch) counted = rows;
    };
    {
        auto engine = engine::Engine::start(options, std::make_unique<InstantDevice>(layout, rows), **words, callbacks);
        for (uint32_t i = 0; i < batch; ++i) {
            wire::Sequence s;
            s.ref = {SequenceId{i + 1}, 1};
            for (uint32_t t = 0; t < 1'000; ++t) s.prompt.push_back(static_cast<TokenId>(t + i * 17));
            s.sampling.max_tokens = steps;
            s.sampling.stop_ids = {151'643, 151'645};
            s.time_left_ms = 600'000;
            engine->post([s](pd::ReplicaCore& core, TimeMs now) { core.on_supervisor(now, wire::Run{s}); });
        }
        ended.get_future().wait();
    }
    double us = (end - begin) * batch / static_cast<double>(counted);
    if (!other.empty()) us = static_cast<double>(last.host_us - first.host_us) / static_cast<double>(last.steps - first.steps);
    std::printf("batch %3u, blocks of %2u tokens: %6.2f us a step\n", batch, block_tokens, us);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
    const int steps = argc > 1 ? std::atoi(argv[1]) : 2'000;
    baton::other.resize(argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) * 128 : 0, 1);
    for (const uint32_t block_tokens : {16u, 64u})
        for (const uint32_t batch : {1u, 8u, 64u, 256u}) baton::measure(batch, block_tokens, static_cast<uint32_t>(steps));
}
