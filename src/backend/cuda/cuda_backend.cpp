#include "backend/cuda/cuda_backend.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace baton::backend::cuda {

namespace {

constexpr auto kSpin = std::chrono::milliseconds(2);  // then the thread sleeps until the device wakes it

}  // namespace

CudaBackend::~CudaBackend() {
    static_cast<void>(cudaSetDevice(static_cast<int>(options_.device)));
    if (stream_) static_cast<void>(cudaStreamSynchronize(stream_.get()));
    if (uploads_) static_cast<void>(cudaStreamSynchronize(uploads_.get()));
    if (results_) static_cast<void>(cudaStreamSynchronize(results_.get()));
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
    BATON_TRY(input_.check(batch));
    BATON_TRY(enter());
    progress_.clear();
    for (const Slice& s : batch.slices) {
        if (s.progress == nullptr) continue;
        progress_.push_back({device_word(s.progress), s.progress_base});
        if (progress_.back().word == nullptr) return fail(ErrorCode::kInvalidArgument, "a progress word lies outside the shared memory");
    }
    const Arrangement& step = input_.arrange(batch, next_buffer_);
    if (auto queued = enqueue(batch, step); !queued) return fault(std::move(queued).error());
    next_buffer_ = (next_buffer_ + 1) % kDepth;
    return {};
}

Expected<void> CudaBackend::enqueue(const Batch& batch, const Arrangement& step) {
    const uint32_t buffer = step.shape.buffer;
    requests_.clear();
    bool counts = false;
    for (const Slice& s : batch.slices) {
        if (!s.logits) continue;
        requests_.push_back({s.sequence, s.state, s.pending});
        const wire::Sampling& how = s.sequence->sampling;
        counts = counts || how.repetition_penalty != 1.0f || how.presence_penalty != 0.0f || how.frequency_penalty != 0.0f;
    }
    // Input and settings come and results go on streams of their own, so that copies hold up no step. Counts of tokens are
    // what steps before this one still work on: they are brought up to date in the order of the steps.
    BATON_CUDA_TRY(input_.upload(uploads_.get(), batch, step, progress_), "a step's input");
    BATON_TRY(sampler_->prepare(counts ? stream_.get() : uploads_.get(), buffer, requests_));
    BATON_CUDA_TRY(cudaEventRecord(uploaded_[buffer].get(), uploads_.get()), "a step's input");
    BATON_CUDA_TRY(cudaStreamWaitEvent(stream_.get(), uploaded_[buffer].get(), 0), "a step's input");
    BATON_TRY(run(step));
    BATON_CUDA_TRY(cudaEventRecord(ran_[buffer].get(), stream_.get()), "a step");
    BATON_CUDA_TRY(cudaStreamWaitEvent(results_.get(), ran_[buffer].get(), 0), "a step's result");
    BATON_CUDA_TRY(sampler_->fetch(results_.get(), buffer), "a step's result");
    BATON_CUDA_TRY(cudaEventRecord(done_[buffer].get(), results_.get()), "a step's result");
    last_logits_ = static_cast<uint32_t>(requests_.size());
    flights_.push_back({buffer, last_logits_});
    return {};
}

Expected<void> CudaBackend::run(const Arrangement& step) {
    StepShape shape = step.shape;
    shape.splits = splits(shape.decode, step.kv_max);
    if (shape.decode == shape.rows) set_overlap(shape);
    const auto graph = step.graph ? graphs_.find(shape) : graphs_.end();
    if (graph != graphs_.end()) {
        BATON_CUDA_TRY(cudaGraphLaunch(graph->second.get(), stream_.get()), "a step's graph");
        return {};
    }
    // The first step of a shape runs by itself, which loads the kernels; its graph is made while the device works.
    BATON_CUDA_TRY(run_pass(setup_, launch(), shape), "a step's kernels");
    if (!step.graph) return {};
    return capture(shape);
}

Expected<void> CudaBackend::capture(const StepShape& shape) {
    BATON_CUDA_TRY(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capturing a step");
    const cudaError_t launched = run_pass(setup_, launch(), shape);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &graph);
    if (launched != cudaSuccess || ended != cudaSuccess) {
        if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
        return cuda_failed(launched != cudaSuccess ? launched : ended, "capturing a step");
    }
    cudaGraphExec_t exec = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    BATON_CUDA_TRY(made, "a step's graph");
    graphs_.emplace(shape, exec);
    BATON_CUDA_TRY(cudaGraphUpload(exec, stream_.get()), "a step's graph");
    return {};
}

/// Parts of a context for decode attention. Contexts are counted in classes, so that few graphs serve all of them.
uint32_t CudaBackend::splits(uint32_t decode, uint32_t kv_max) const {
    if (decode == 0) return 1;
    uint32_t top = 256;
    while (top < kv_max) top *= 2;
    return decode_splits(decode, model_.shape.kv_heads, std::min(top, positions_max_), multiprocessors_);
}

bool CudaBackend::ready() const {
    return flights_.empty() || fault_ || cudaEventQuery(done_[flights_.front().buffer].get()) != cudaErrorNotReady;
}

Expected<void> CudaBackend::collect(std::vector<wire::Token>& tokens) {
    tokens.clear();
    if (fault_) return fail(*fault_);
    if (flights_.empty()) return fail(ErrorCode::kInvalidArgument, "no step was submitted");
    const Flight flight = flights_.front();
    const cudaEvent_t done = done_[flight.buffer].get();
    const auto start = std::chrono::steady_clock::now();
    cudaError_t status = cudaErrorNotReady;
    while ((status = cudaEventQuery(done)) == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() - start > kSpin) {
            status = cudaEventSynchronize(done);
            break;
        }
        sched_yield();
    }
    if (status != cudaSuccess) {
        auto failed = cuda_failed(status, "a step");
        return fault(std::move(failed).value());
    }
    flights_.pop_front();
    if (flight.logits > 0) sampler_->take(flight.buffer, tokens);
    return {};
}

/// Whatever thread calls: the current device is a thread's own.
Expected<void> CudaBackend::enter() const {
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
