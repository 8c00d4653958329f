#include "fake_gpu/fake_backend.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "baton/base/check.hpp"

namespace baton::fake_gpu {
namespace {

/// One process in all fails: the file that says so is made once.
bool first_to_fail() {
    const char* mark = std::getenv("BATON_FAKE_GPU_FAIL_MARK");
    if (mark == nullptr) return true;
    return static_cast<bool>(UniqueFd(::open(mark, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)));
}

int64_t number_from(const char* variable, int64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace

Expected<std::unique_ptr<FakeBackend>> FakeBackend::make(const backend::Plan& plan, const backend::CudaOptions& options,
                                                         uint64_t memory_bytes) {
    auto out = std::make_unique<FakeBackend>();
    backend::CpuOptions cpu;
    cpu.threads = 1;
    cpu.block_tokens = options.block_tokens;
    cpu.max_batch_tokens = options.max_batch_tokens;
    cpu.max_batch_slices = options.max_batch_slices;
    cpu.kv_first = options.kv_first;
    cpu.blocks = 1;
    BATON_TRY_ASSIGN(kv::PoolLayout layout, backend::cpu_kv_layout(plan.shape, cpu));
    const uint64_t weights = uint64_t{2} * plan.shape.vocab * plan.shape.hidden;  // stands for all of them
    const uint64_t free = memory_bytes > weights ? memory_bytes - weights : 0;
    cpu.blocks = options.blocks != 0 ? options.blocks : static_cast<uint32_t>(free / layout.block_bytes());
    const uint32_t context = options.max_model_len != 0 ? options.max_model_len : plan.shape.context;
    const uint64_t least = uint64_t{context + options.block_tokens - 1} / options.block_tokens;
    const uint64_t needed = weights + std::max<uint64_t>(cpu.blocks, least) * layout.block_bytes();
    if (needed > memory_bytes)
        return fail(ErrorCode::kUnavailable, "GPU " + std::to_string(options.device) + " has not enough memory: " + std::to_string(needed) +
                                                 " bytes are needed, " + std::to_string(memory_bytes) + " may be taken");
    BATON_TRY_ASSIGN(layout, backend::cpu_kv_layout(plan.shape, cpu));
    BATON_TRY_ASSIGN(out->pool_, FakePool::make(layout, "GPU-fake-" + std::to_string(options.device)));
    BATON_TRY_ASSIGN(out->cpu_, backend::make_cpu_backend(plan, cpu, out->pool_->memory()));
    out->device_ = options.device;
    out->memory_bytes_ = needed;
    out->logits_.resize(size_t{options.max_batch_slices} * plan.shape.vocab);
    out->states_.resize(options.max_batch_slices);
    out->step_us_ = number_from("BATON_FAKE_GPU_STEP_US", 0);
    out->fail_at_ = number_from("BATON_FAKE_GPU_FAIL_AT", -1);
    out->hollow_ = number_from("BATON_FAKE_GPU_HOLLOW", 0) != 0;
    out->thread_ = std::thread([device = out.get()] { device->device_loop(); });
    return out;
}

FakeBackend::~FakeBackend() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Expected<void> FakeBackend::share_words(std::span<std::byte> memory) {
    words_ = memory;
    return {};
}

Expected<void> FakeBackend::submit(const backend::Batch& batch) {
    auto step = std::make_unique<Step>();
    step->tokens.assign(batch.tokens.begin(), batch.tokens.end());
    size_t rows = 0;
    for (const backend::Slice& s : batch.slices) {
        BATON_CHECK(s.state < states_.size() && s.pending <= 1 && (s.pending == 0 || s.tokens == 1));
        BATON_CHECK(s.logits == (s.sequence != nullptr));
        if (s.progress != nullptr) {
            const auto* at = reinterpret_cast<const std::byte*>(s.progress);
            BATON_CHECK(at >= words_.data() && at + sizeof(uint64_t) <= words_.data() + words_.size());
        }
        rows += s.tokens;
        if (s.logits) step->masks.emplace_back();
        Part& part = step->parts.emplace_back();
        part.slice = s;
        part.blocks.assign(s.blocks.begin(), s.blocks.end());
        if (s.logits && s.pending == 0 && !hollow_) part.sequence = *s.sequence;
    }
    BATON_CHECK(rows == batch.tokens.size());
    {
        const std::lock_guard lock(mutex_);
        BATON_CHECK(steps_.size() < kDepth);
        if (submitted_++ == fail_at_ && first_to_fail()) step->error = "the device has fallen off the bus";
        steps_.push_back(std::move(step));
    }
    changed_.notify_all();
    return {};
}

Expected<void> FakeBackend::allow(uint32_t row, std::span<const uint32_t> mask) {
    {
        const std::lock_guard lock(mutex_);
        BATON_CHECK(!steps_.empty() && row < steps_.back()->masks.size() && mask.size() == (shape().vocab + 31) / 32);
        steps_.back()->masks[row].assign(mask.begin(), mask.end());
    }
    changed_.notify_all();
    return {};
}

Expected<void> FakeBackend::collect(std::vector<wire::Token>& tokens) {
    std::unique_lock lock(mutex_);
    BATON_CHECK(!steps_.empty());
    changed_.wait(lock, [&] { return steps_.front()->done; });
    const auto step = std::move(steps_.front());
    steps_.pop_front();
    if (!step->error.empty()) return fail(ErrorCode::kInternal, step->error);
    tokens = std::move(step->sampled);
    return {};
}

bool FakeBackend::ready() const {
    const std::lock_guard lock(mutex_);
    return !steps_.empty() && steps_.front()->done;
}

void FakeBackend::device_loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto next = [&] { return std::ranges::find_if(steps_, [](const auto& s) { return !s->done; }); };
        changed_.wait(lock, [&] { return stopping_ || next() != steps_.end(); });
        if (next() == steps_.end()) return;  // what was submitted is run in any case
        Step& step = **next();
        lock.unlock();
        if (step_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_us_));
        if (step.error.empty()) hollow_ ? run_hollow(step) : run(step);
        lock.lock();
        step.done = true;
        changed_.notify_all();
    }
}

/// Progress and some token for each sequence, at once: what is left is what the host costs.
void FakeBackend::run_hollow(Step& step) {
    constexpr uint32_t kFirst = 257, kStride = 7919;  // past the bytes and the end of text
    const uint32_t vocab = shape().vocab;
    for (const Part& part : step.parts) {
        const backend::Slice& s = part.slice;
        if (s.progress != nullptr)
            std::atomic_ref(*s.progress).store(s.progress_base + (uint64_t{shape().layers} << 48), std::memory_order_release);
        if (!s.logits) continue;
        const uint32_t id = vocab > kFirst ? kFirst + (s.position * kStride + s.state) % (vocab - kFirst) : s.position % vocab;
        step.sampled.emplace_back().id = static_cast<TokenId>(id);
    }
}

void FakeBackend::run(Step& step) {
    std::vector<backend::Slice> slices;
    size_t first = 0, sampling = 0;
    for (Part& part : step.parts) {
        State& state = states_[part.slice.state];
        if (part.slice.pending > 0) {
            BATON_CHECK(state.sampled);
            step.tokens[first] = state.sequence.emitted.back();
        } else if (part.slice.logits) {
            state.sequence = std::move(part.sequence);
        } else {
            state.sampled = false;  // a prompt begins or goes on
        }
        part.slice.blocks = part.blocks;
        first += part.slice.tokens;
        sampling += part.slice.logits ? 1 : 0;
        slices.push_back(part.slice);
    }
    const std::span logits = std::span(logits_).first(sampling * shape().vocab);
    const auto done = cpu_->forward({step.tokens, slices}, logits, [&](uint32_t layer) {
        for (const backend::Slice& s : slices)
            if (s.progress != nullptr)
                std::atomic_ref(*s.progress).store(s.progress_base + (uint64_t{layer + 1} << 48), std::memory_order_release);
    });
    if (!done) {
        step.error = done.error().message;
        return;
    }
    size_t row = 0;
    for (const backend::Slice& s : slices) {
        if (!s.logits) continue;
        State& state = states_[s.state];
        std::span<const uint32_t> mask;
        if (s.masked) {
            std::unique_lock lock(mutex_);
            const auto given = [&] { return !step.masks[row].empty() || stopping_; };
            BATON_CHECK(changed_.wait_for(lock, std::chrono::seconds(30), given));
            mask = step.masks[row];
        }
        step.sampled.push_back(sched::sample(logits.subspan(row++ * shape().vocab, shape().vocab), state.sequence, scratch_, mask));
        state.sequence.emitted.push_back(step.sampled.back().id);
        state.sampled = true;
    }
}

}  // namespace baton::fake_gpu
