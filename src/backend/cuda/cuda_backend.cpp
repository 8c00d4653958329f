#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/nccl_link.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace baton::backend::cuda {

namespace {

constexpr auto kSpin = std::chrono::milliseconds(2);    // then the thread naps
constexpr auto kNap = std::chrono::microseconds(20);
constexpr auto kAsk = std::chrono::milliseconds(50);    // between questions whether the device failed
constexpr size_t kGraphsMax = 128;  // then the one that was not used for longest goes

/// Adds the time since the last call, or since it was made, to a sum.
class Lap {
  public:
    void operator()(uint64_t& sum) {
        const auto now = std::chrono::steady_clock::now();
        sum += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count());
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

CudaBackend::~CudaBackend() {
    static_cast<void>(cudaSetDevice(static_cast<int>(options_.device)));
    if (stream_) static_cast<void>(cudaStreamSynchronize(stream_.get()));
    if (primer_stream_) static_cast<void>(cudaStreamSynchronize(primer_stream_.get()));
    movers_.reset();
    for (const SharedWords& words : words_)
        if (words.registered) static_cast<void>(cudaHostUnregister(words.host));
}

std::string CudaBackend::describe() const {
    return "cuda " + std::to_string(options_.device) + " " + device_name_ + ", " + (options_.fp16 ? "fp16" : "bf16") +
           (options_.deterministic ? ", deterministic" : "");
}

tl::unexpected<Error> CudaBackend::fault(Error error) {
    if (!fault_) fault_ = error;
    return fail(std::move(error));
}

Expected<void> CudaBackend::submit(const Batch& batch) {
    if (fault_) return fail(*fault_);
    if (flights_.size() >= kDepth) return fail(ErrorCode::kInvalidArgument, "the oldest step must be collected first");
    note_masked(batch);
    input_.allow_joined(nccl_links_open() == 0);
    BATON_TRY_ASSIGN(const bool followed, submit_followed(batch));
    if (followed) return {};
    Lap lap;
    BATON_TRY(input_.check(batch));
    BATON_TRY(enter());
    progress_.clear();
    for (const Slice& s : batch.slices) {
        if (s.progress == nullptr) continue;
        progress_.push_back({device_word(s.progress), s.progress_base});
        if (progress_.back().word == nullptr) return fail(ErrorCode::kInvalidArgument, "a progress word lies outside the shared memory");
    }
    lap(times_.check);
    BATON_TRY(capture_wanted());
    const Arrangement& step = input_.arrange(batch);
    if (auto queued = enqueue(batch, step); !queued) return fault(std::move(queued).error());
    ++next_step_;
    ++times_.steps;
    return {};
}

/// Which of the batch's rows with logits have masks.
void CudaBackend::note_masked(const Batch& batch) {
    masked_.clear();
    if (std::ranges::none_of(batch.slices, &Slice::masked)) return;
    for (const Slice& s : batch.slices)
        if (s.logits) masked_.push_back(s.masked);
}

Expected<void> CudaBackend::allow(uint32_t row, std::span<const uint32_t> mask) {
    if (fault_) return fail(*fault_);
    if (row >= masked_.size() || !masked_[row] || mask.size() != (model_.shape.vocab + 31) / 32)
        return fail(ErrorCode::kInvalidArgument, "the step has no such masked row, or the mask another size");
    sampler_->allow(flights_.back().step, row, mask);
    return {};
}

/// Submits a batch that is the last one with each sequence one token further. False, and nothing was done, where it is not.
Expected<bool> CudaBackend::submit_followed(const Batch& batch) {
    Lap lap;
    if (!input_.follows(batch) || !sampler_->follow(next_step_)) return false;
    BATON_TRY(enter());
    lap(times_.check);
    BATON_TRY(capture_wanted());
    Lap filling;
    const Arrangement& step = input_.follow(next_step_, batch);
    filling(times_.fill);
    if (auto queued = run(step); !queued) return fault(std::move(queued).error());
    flights_.push_back({next_step_, last_logits_});
    if (!masked_.empty()) sampler_->expect_masks(next_step_, masked_);
    ++next_step_;
    ++times_.steps;
    ++times_.followed;
    return true;
}

Expected<void> CudaBackend::enqueue(const Batch& batch, const Arrangement& step) {
    Lap lap;
    requests_.clear();
    for (const Slice& s : batch.slices)
        if (s.logits) requests_.push_back({s.sequence, s.state, s.pending, s.position + s.tokens});
    input_.fill(next_step_, batch, step, progress_);
    lap(times_.fill);
    BATON_TRY(sampler_->describe(stream_.get(), next_step_, requests_));
    lap(times_.settings);
    BATON_TRY(run(step));
    last_logits_ = static_cast<uint32_t>(requests_.size());
    flights_.push_back({next_step_, last_logits_});
    if (!masked_.empty()) sampler_->expect_masks(next_step_, masked_);
    return {};
}

StepShape CudaBackend::shape_of(const Arrangement& step) const {
    StepShape shape = step.shape;
    if (shape.decode_only()) {
        if (!shape.joined) shape.splits = splits(shape.decode, step.kv_max);
        set_overlap(shape);
    } else {
        shape.splits = multiprocessors_;  // evenly, however few of the sequences are there
    }
    shape.masked = !masked_.empty();
    shape.whole = !shape.one_each() || shape.rows > kRowsSampledOnce || sampler_->whole(next_step_);
    return shape;
}

Expected<void> CudaBackend::run(const Arrangement& step) {
    Lap lap;
    const StepShape shape = shape_of(step);
    if (last_graph_ == nullptr || shape != last_shape_) {
        const auto found = graphs_.find(shape);
        last_graph_ = found == graphs_.end() ? nullptr : &found->second;
        last_shape_ = shape;
    }
    if (last_graph_ != nullptr) {
        last_graph_->used = next_step_;
        BATON_CUDA_TRY(cudaGraphLaunch(last_graph_->exec.get(), stream_.get()), "a step's graph");
        lap(times_.launch);
        return {};
    }
    // The first step of a shape runs by itself, which loads the kernels.
    BATON_CUDA_TRY(run_pass(setup_, launch(), shape), "a step's kernels");
    wanted_ = shape;
    lap(times_.eager);
    ++times_.eager_steps;
    return {};
}

/// Makes the graph of a shape that ran by itself: when the step before it was collected, so that no tokens wait, and the device
/// works on it.
Expected<void> CudaBackend::capture_wanted() {
    if (!wanted_) return {};
    Lap lap;
    const StepShape shape = *std::exchange(wanted_, std::nullopt);
    if (auto made = keep_graph(shape); !made) return fault(std::move(made).error());
    lap(times_.eager);
    return {};
}

Expected<void> CudaBackend::keep_graph(const StepShape& shape) {
    last_graph_ = nullptr;
    if (graphs_.size() >= kGraphsMax) {
        auto oldest = graphs_.end();
        for (auto it = graphs_.begin(); it != graphs_.end(); ++it)
            if (!it->second.kept && (oldest == graphs_.end() || it->second.used < oldest->second.used)) oldest = it;
        if (oldest != graphs_.end()) graphs_.erase(oldest);
    }
    BATON_TRY_ASSIGN(GraphExec exec, capture(setup_, shape));
    graphs_.emplace(shape, Graph{std::move(exec), next_step_, false});
    return {};
}

Expected<GraphExec> CudaBackend::capture(const PassSetup& setup, const StepShape& shape) {
    BATON_CUDA_TRY(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capturing a step");
    const cudaError_t launched = run_pass(setup, launch(), shape);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &graph);
    if (launched != cudaSuccess || ended != cudaSuccess) {
        if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
        return cuda_failed(launched != cudaSuccess ? launched : ended, "capturing a step");
    }
    cudaGraphExec_t made = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    BATON_CUDA_TRY(status, "a step's graph");
    GraphExec exec(made);
    BATON_CUDA_TRY(cudaGraphUpload(exec.get(), stream_.get()), "a step's graph");
    return exec;
}

/// Parts of a context for decode attention. Contexts are counted in classes, so that few graphs serve all of them.
uint32_t CudaBackend::splits(uint32_t decode, uint32_t kv_max) const {
    if (decode == 0) return 1;
    uint32_t top = 256;
    while (top < kv_max) top *= 2;
    return decode_splits(decode, model_.shape.kv_heads, std::min(top, positions_max_), multiprocessors_);
}

bool CudaBackend::ready() const {
    return flights_.empty() || fault_ || sampler_->ready(flights_.front().step) || failed();
}

void CudaBackend::prime() {
    // What fails here fails with the next step too, which tells of it.
    if (!fault_ && primer_) static_cast<void>(cudaGraphLaunch(primer_.get(), primer_stream_.get()));
}

/// Whether the device will never be ready, or is and nobody said so. Asks the driver now and then.
bool CudaBackend::failed() const {
    const auto now = std::chrono::steady_clock::now();
    if (now - asked_ < kAsk) return false;
    asked_ = now;
    return cudaStreamQuery(stream_.get()) != cudaErrorNotReady;
}

Expected<void> CudaBackend::collect(std::vector<wire::Token>& tokens) {
    if (fault_) return fail(*fault_);
    if (flights_.empty()) return fail(ErrorCode::kInvalidArgument, "no step was submitted");
    const Flight flight = flights_.front();
    const auto start = std::chrono::steady_clock::now();
    while (!sampler_->ready(flight.step)) {
        if (failed() && !sampler_->ready(flight.step)) {
            const cudaError_t status = cudaStreamQuery(stream_.get());
            auto lost = cuda_failed(status == cudaSuccess ? cudaErrorUnknown : status, "a step");
            return fault(std::move(lost).value());
        }
        if (std::chrono::steady_clock::now() - start > kSpin) std::this_thread::sleep_for(kNap);
        else sched_yield();
    }
    flights_.pop_front();
    Lap lap;
    if (flight.logits > 0) sampler_->take(flight.step, tokens);
    else tokens.clear();
    lap(times_.take);
    return {};
}

/// Whatever thread calls: the current device is a thread's own. To set it takes a microsecond, to ask for it next to nothing.
Expected<void> CudaBackend::enter() const {
    int now = -1;
    if (cudaGetDevice(&now) == cudaSuccess && now == static_cast<int>(options_.device)) return {};
    BATON_CUDA_TRY(cudaSetDevice(static_cast<int>(options_.device)), "the GPU of this backend");
    return {};
}

Expected<void> CudaBackend::share_words(std::span<std::byte> memory) {
    BATON_TRY(enter());
    SharedWords words;
    words.host = memory.data();
    words.bytes = memory.size();
    BATON_CUDA_TRY(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterMapped | cudaHostRegisterPortable),
                   "memory for progress words");
    words.registered = true;
    void* device = nullptr;
    if (const cudaError_t status = cudaHostGetDevicePointer(&device, memory.data(), 0); status != cudaSuccess) {
        static_cast<void>(cudaHostUnregister(memory.data()));
        return cuda_failed(status, "memory for progress words");
    }
    words.device = static_cast<std::byte*>(device);
    words_.push_back(words);
    return {};
}

/// Where the device finds a progress word; null for memory that was not shared.
uint64_t* CudaBackend::device_word(uint64_t* word) const {
    auto* at = reinterpret_cast<std::byte*>(word);
    for (const SharedWords& words : words_)
        if (at >= words.host && at + sizeof(uint64_t) <= words.host + words.bytes)
            return reinterpret_cast<uint64_t*>(words.device + (at - words.host));
    return nullptr;
}

Expected<void> CudaBackend::debug_logits(std::vector<float>& logits) {
    if (!options_.keep_logits) return fail(ErrorCode::kUnsupported, "this backend keeps no logits");
    BATON_TRY(enter());
    logits.resize(size_t{last_logits_} * model_.shape.vocab);
    BATON_CUDA_TRY(cudaStreamSynchronize(stream_.get()), "the logits");
    BATON_CUDA_TRY(cudaMemcpy(logits.data(), kept_.data(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost), "the logits");
    return {};
}

}  // namespace baton::backend::cuda
