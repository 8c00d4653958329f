#include "backend/cuda/sampler.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "backend/cuda/memory.hpp"
#include "backend/cuda/sampler_kernels.hpp"

namespace baton::backend::cuda {
namespace {

using sampling::Edit;
using sampling::Mode;
using sampling::Row;

constexpr float kTemperatureMin = 1e-5f;  // greedy below, as on the CPU
constexpr uint32_t kStaged = 8;  // rows of counts that one step can rebuild without waiting
constexpr uint32_t kBuffers = 2;
constexpr float kForbidden = -9999.0f;  ///< logprob of a token that a mask took away

bool has_penalties(const wire::Sampling& s) {
    return s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f ||
           s.frequency_penalty != 0.0f;
}

/// What the device's counts of a state row hold.
struct Counted {
    wire::SeqRef ref;
    size_t emitted = 0;  ///< ids counted once all steps described so far have run
    bool valid = false;
};

/// Whose settings a row of an upload holds. Where they are wanted again, only the position changes.
struct Held {
    uint32_t state = 0;
    uint32_t user = 0;
    uint32_t position = 0;
    bool plain = false;  ///< nothing in it depends on what was emitted
    bool whole = false;  ///< as Step::whole
};

/// The page-locked memory of a step.
struct Step {
    PinnedBuffer upload, counts;
    std::vector<Held> held;       ///< of each row of `upload`
    std::vector<int32_t> wanted;  ///< of each row described: top_logprobs
    std::vector<bool> masked;     ///< of each row, where some have masks
    uint32_t number = UINT32_MAX;  ///< of the step described last
    bool plain = false;            ///< all its rows are (Held::plain)
    bool whole = false;            ///< some row is neither greedy nor a draw from all
};

class DeviceSampler final : public Sampler {
  public:
    DeviceSampler(uint32_t vocab, uint32_t rows_max, uint32_t states)
        : vocab_(vocab),
          rows_max_(rows_max),
          stride_((vocab + sampling::kChunk - 1) / sampling::kChunk * sampling::kChunk),
          edits_at_(sampling::kRowsAt + rows_max * static_cast<uint32_t>(sizeof(Row))),
          counted_(states),
          users_(states, 0),
          edit_of_(vocab, 0),
          edit_stamp_(vocab, 0) {}

    Expected<void> allot();
    Expected<void> describe(cudaStream_t stream, uint32_t step,
                            std::span<const SampleRequest> rows) override;
    bool follow(uint32_t step) override;
    [[nodiscard]] SampleUpload upload() const override;
    Expected<void> prepare(cudaStream_t stream, uint32_t step,
                           std::span<const SampleRequest> rows) override;
    cudaError_t run(const Launch& launch, float* logits, uint32_t rows, uint32_t* counter, bool whole) override;
    [[nodiscard]] bool whole(uint32_t step) const override { return steps_[step % kBuffers].whole; }
    [[nodiscard]] bool ready(uint32_t step) const override;
    void take(uint32_t step, std::vector<wire::Token>& tokens) override;
    cudaError_t wait_for_masks(const Launch& launch, float* logits, uint32_t rows) override;
    void expect_masks(uint32_t step, const std::vector<bool>& masked) override;
    void allow(uint32_t step, uint32_t row, std::span<const uint32_t> mask) override;
    [[nodiscard]] const int32_t* last() const override { return last_.as<int32_t>(); }
    [[nodiscard]] size_t bytes() const override;
    void limit_list(uint32_t list_max) override {
        args_.list_max = list_max == 0 ? sampling::kList : std::min(list_max, sampling::kList);
    }

  private:
    Row describe_row(const SampleRequest& request) const;
    Expected<void> describe_anew(cudaStream_t stream, Step& step, const SampleRequest& request, size_t at,
                                 uint32_t& edits, uint32_t& staged);
    [[nodiscard]] const sampling::Head* heads(uint32_t step) const {
        return heads_.as<sampling::Head>() + size_t{step % kBuffers} * rows_max_;
    }
    Expected<uint32_t> add_edits(const SampleRequest& request, Edit* edits);
    Expected<void> keep_counts(cudaStream_t stream, Step& step, const SampleRequest& request,
                               uint32_t& staged);
    Expected<void> rebuild(cudaStream_t stream, Step& step, const SampleRequest& request,
                           uint32_t& staged);

    uint32_t vocab_;
    uint32_t rows_max_;
    uint32_t stride_;  ///< counts of a state row
    uint32_t edits_at_;  ///< in an upload
    std::array<Step, kBuffers> steps_;
    PinnedBuffer heads_, tops_, ended_;  ///< results, as in Args
    PinnedBuffer mask_words_, masks_;    ///< as in Args
    DeviceBuffer counts_, last_, work_, upload_;
    sampling::Args args_{};
    std::vector<Counted> counted_;
    std::vector<uint32_t> users_;    ///< of each state row: sequences that took it so far, so that two of them are told apart
    std::vector<uint32_t> edit_of_;  ///< of an id: its edit in the row whose stamp it bears
    std::vector<uint32_t> edit_stamp_;
    uint32_t stamp_ = 0;
};

/// Cuts arrays out of one block of memory; with a null base it only measures.
class Carver {
  public:
    explicit Carver(std::byte* base) : base_(base) {}
    template <class T>
    void cut(T*& array, size_t n) {
        array = base_ != nullptr ? reinterpret_cast<T*>(base_ + at_) : nullptr;
        at_ += (n * sizeof(T) + 255) / 256 * 256;
    }
    [[nodiscard]] size_t size() const { return at_; }

  private:
    std::byte* base_;
    size_t at_ = 0;
};

size_t carve(sampling::Args& args, std::byte* base, uint32_t rows) {
    Carver carver(base);
    const size_t chunks = static_cast<size_t>(rows) * args.chunks;
    carver.cut(args.states, rows);
    carver.cut(args.keys, chunks);
    carver.cut(args.masses, chunks);
    carver.cut(args.sums, chunks);
    carver.cut(args.raw_keys, chunks);
    carver.cut(args.raw_sums, chunks);
    carver.cut(args.bin_counts, size_t{rows} * sampling::kBins);
    carver.cut(args.bin_masses, size_t{rows} * sampling::kBins);
    carver.cut(args.list, size_t{rows} * sampling::kList);
    carver.cut(args.raw_saved, size_t{rows} * sampling::kEditsMax);
    return carver.size();
}

Expected<void> DeviceSampler::allot() {
    args_.vocab = vocab_;
    args_.chunks = stride_ / sampling::kChunk;
    args_.count_stride = stride_;
    limit_list(0);
    args_.edits_at = edits_at_;
    args_.rows_max = rows_max_;
    const size_t upload = edits_at_ + size_t{rows_max_} * sampling::kEditsMax * sizeof(Edit);
    const size_t states = counted_.size();
    BATON_TRY_ASSIGN(work_, DeviceBuffer::make(carve(args_, nullptr, rows_max_), "sampling"));
    carve(args_, work_.data(), rows_max_);
    BATON_TRY_ASSIGN(counts_, DeviceBuffer::make(states * stride_ * sizeof(uint16_t),
                                                 "counts of sampled tokens"));
    BATON_TRY_ASSIGN(last_, DeviceBuffer::make(states * sizeof(int32_t), "sampled tokens"));
    args_.counts = counts_.as<uint16_t>();
    args_.last = last_.as<int32_t>();
    const size_t results = size_t{kBuffers} * rows_max_;
    BATON_TRY_ASSIGN(heads_, PinnedBuffer::make(results * sizeof(sampling::Head)));
    BATON_TRY_ASSIGN(tops_, PinnedBuffer::make(results * sizeof(sampling::Top)));
    BATON_TRY_ASSIGN(ended_, PinnedBuffer::make(kBuffers * sizeof(uint32_t)));
    // A number that no step has before four billion others.
    std::memset(heads_.data(), 0xff, heads_.size());
    std::memset(ended_.data(), 0xff, ended_.size());
    args_.heads = heads_.as<sampling::Head>();
    args_.tops = tops_.as<sampling::Top>();
    args_.ended = ended_.as<uint32_t>();
    args_.mask_size = (vocab_ + 31) / 32;
    BATON_TRY_ASSIGN(mask_words_, PinnedBuffer::make(results * sizeof(uint64_t)));
    BATON_TRY_ASSIGN(masks_, PinnedBuffer::make(results * args_.mask_size * sizeof(uint32_t)));
    std::memset(mask_words_.data(), 0, mask_words_.size());
    args_.mask_words = mask_words_.as<uint64_t>();
    args_.masks = masks_.as<uint32_t>();
    for (Step& step : steps_) {
        BATON_TRY_ASSIGN(step.upload, PinnedBuffer::make(upload));
        std::memset(step.upload.data(), 0, step.upload.size());
        BATON_TRY_ASSIGN(step.counts,
                         PinnedBuffer::make(size_t{kStaged} * stride_ * sizeof(uint16_t)));
        step.held.resize(rows_max_);
        step.wanted.reserve(rows_max_);
    }
    BATON_TRY_ASSIGN(upload_, DeviceBuffer::make(upload, "sampling settings"));
    args_.upload = upload_.data();
    // A graph that runs before anything was described finds no rows.
    BATON_CUDA_TRY(cudaMemset(upload_.data(), 0, upload_.size()), "clearing the sampler's memory");
    BATON_CUDA_TRY(cudaMemset(work_.data(), 0, work_.size()), "clearing the sampler's memory");
    BATON_CUDA_TRY(cudaMemset(counts_.data(), 0, counts_.size()), "clearing the sampler's memory");
    BATON_CUDA_TRY(cudaMemset(last_.data(), 0, last_.size()), "clearing the sampler's memory");
    BATON_CUDA_TRY(sampling::load_kernels(), "loading the sampler's kernels");
    BATON_CUDA_TRY(cudaDeviceSynchronize(), "clearing the sampler's memory");
    return {};
}

size_t DeviceSampler::bytes() const {
    return work_.size() + counts_.size() + last_.size() + upload_.size();
}

SampleUpload DeviceSampler::upload() const {
    SampleUpload u;
    for (uint32_t i = 0; i < kBuffers; ++i) u.from[i] = steps_[i].upload.data();
    u.to = upload_.data();
    u.head = sampling::kRowsAt;
    u.row = sizeof(Row);
    u.edits_at = edits_at_;
    u.edits_count = offsetof(sampling::Header, edits);
    u.edit = sizeof(Edit);
    u.step = offsetof(sampling::Header, step);
    u.position = offsetof(Row, position);
    return u;
}

Row DeviceSampler::describe_row(const SampleRequest& request) const {
    const wire::Sequence& sequence = *request.sequence;
    const wire::Sampling& s = sequence.sampling;
    Row row{};
    row.seed = s.seed;
    row.position = sequence.prompt.size() + sequence.emitted.size() + request.pending;
    row.scale = 1.0f / s.temperature;
    row.top_p = s.top_p < 1.0f ? s.top_p : 1.0f;
    row.min_p = s.min_p > 0.0f ? s.min_p : 0.0f;
    row.top_k =
        s.top_k > 0 && static_cast<uint32_t>(s.top_k) < vocab_ ? static_cast<uint32_t>(s.top_k) : 0;
    row.repetition = s.repetition_penalty;
    row.presence = s.presence_penalty;
    row.frequency = s.frequency_penalty;
    row.state = request.state;
    row.penalties = has_penalties(s) ? 1 : 0;
    row.top = std::min(s.top_logprobs, static_cast<int32_t>(kTopMax));
    row.mode = !(s.temperature >= kTemperatureMin)  ? Mode::kGreedy
               : row.top_k != 0 || row.top_p < 1.0f ? Mode::kOrdered
               : row.min_p > 0.0f                   ? Mode::kBar
                                                    : Mode::kDraw;
    return row;
}

/// Writes the row's biased and masked ids, each once. Ids out of the vocabulary are left out, as on
/// the CPU.
Expected<uint32_t> DeviceSampler::add_edits(const SampleRequest& request, Edit* edits) {
    const wire::Sequence& sequence = *request.sequence;
    const wire::Sampling& s = sequence.sampling;
    const bool masks =
        sequence.emitted.size() + request.pending < s.min_tokens && !s.stop_ids.empty();
    if (s.logit_bias.empty() && !masks) return 0u;
    uint32_t n = 0;
    if (++stamp_ == 0) {
        std::ranges::fill(edit_stamp_, 0u);
        stamp_ = 1;
    }
    const auto edit_for = [&](TokenId id) -> Edit* {
        if (id < 0 || static_cast<uint32_t>(id) >= vocab_) return nullptr;
        const auto at = static_cast<size_t>(id);
        if (edit_stamp_[at] == stamp_) return &edits[edit_of_[at]];
        if (n == sampling::kEditsMax) return nullptr;
        edit_stamp_[at] = stamp_;
        edit_of_[at] = n;
        edits[n] = {id, 0.0f};
        return &edits[n++];
    };
    if (s.logit_bias.size() + (masks ? s.stop_ids.size() : 0) > sampling::kEditsMax)
        return fail(ErrorCode::kInvalidArgument,
                    "logit_bias and stop ids name more than " +
                        std::to_string(sampling::kEditsMax) + " tokens",
                    "logit_bias");
    for (const auto& [id, bias] : s.logit_bias)
        if (Edit* edit = edit_for(id)) edit->bias += bias;
    if (masks)
        for (const TokenId id : s.stop_ids)
            if (Edit* edit = edit_for(id)) edit->bias = -std::numeric_limits<float>::infinity();
    return n;
}

/// Uploads counts from what the host knows of the sequence, and counts the token it does not know
/// yet.
Expected<void> DeviceSampler::rebuild(cudaStream_t stream, Step& step, const SampleRequest& request,
                                      uint32_t& staged) {
    if (staged == kStaged) {
        BATON_CUDA_TRY(cudaStreamSynchronize(stream), "uploading counts");
        staged = 0;
    }
    uint16_t* counts = step.counts.as<uint16_t>() + size_t{staged++} * stride_;
    std::memset(counts, 0, stride_ * sizeof(uint16_t));
    const auto in_vocab = [&](TokenId id) { return id >= 0 && static_cast<uint32_t>(id) < vocab_; };
    for (const TokenId id : request.sequence->emitted)
        if (in_vocab(id) && counts[id] < sampling::kInPrompt - 1) ++counts[id];
    for (const TokenId id : request.sequence->prompt)
        if (in_vocab(id)) counts[id] = static_cast<uint16_t>(counts[id] | sampling::kInPrompt);
    uint16_t* device = args_.counts + static_cast<size_t>(request.state) * stride_;
    BATON_CUDA_TRY(
        cudaMemcpyAsync(device, counts, stride_ * sizeof(uint16_t), cudaMemcpyHostToDevice, stream),
        "uploading counts");
    if (request.pending != 0)
        BATON_CUDA_TRY(sampling::launch_count(stream, device, args_.last + request.state, vocab_),
                       "counting a token");
    return {};
}

/// Sees to it that the counts of a row with penalties are the sequence's.
Expected<void> DeviceSampler::keep_counts(cudaStream_t stream, Step& step,
                                          const SampleRequest& request, uint32_t& staged) {
    Counted& counted = counted_[request.state];
    const wire::Sequence& sequence = *request.sequence;
    const size_t emitted = sequence.emitted.size() + request.pending;
    if (!counted.valid || counted.ref != sequence.ref || counted.emitted != emitted)
        BATON_TRY(rebuild(stream, step, request, staged));
    counted = {sequence.ref, emitted + 1, true};
    return {};
}

Expected<void> DeviceSampler::describe_anew(cudaStream_t stream, Step& step,
                                            const SampleRequest& request, size_t at,
                                            uint32_t& edits, uint32_t& staged) {
    if (request.sequence == nullptr || request.state >= counted_.size())
        return fail(ErrorCode::kInternal,
                    "a row to sample has no sequence or a state row that does not exist");
    if (request.pending == 0) ++users_[request.state];
    Row& row = reinterpret_cast<Row*>(step.upload.data() + sampling::kRowsAt)[at];
    row = describe_row(request);
    BATON_TRY_ASSIGN(row.edits,
                     add_edits(request, reinterpret_cast<Edit*>(step.upload.data() + edits_at_) + edits));
    row.edit_first = edits;
    edits += row.edits;
    if (row.penalties != 0) BATON_TRY(keep_counts(stream, step, request, staged));
    else counted_[request.state].valid = false;
    step.wanted.push_back(row.top);
    step.held[at] = {request.state, users_[request.state], request.position,
                     request.position != 0 && row.edits == 0 && row.penalties == 0,
                     row.mode == Mode::kBar || row.mode == Mode::kOrdered};
    return {};
}

Expected<void> DeviceSampler::describe(cudaStream_t stream, uint32_t step_number,
                                       std::span<const SampleRequest> rows) {
    if (rows.size() > rows_max_)
        return fail(ErrorCode::kInternal, "the sampler has room for " + std::to_string(rows_max_) +
                                              " rows, not " + std::to_string(rows.size()));
    Step& step = steps_[step_number % kBuffers];
    auto* out = reinterpret_cast<Row*>(step.upload.data() + sampling::kRowsAt);
    uint32_t edits = 0, staged = 0;
    step.wanted.clear();
    if (!step.masked.empty()) step.masked.clear();
    step.number = step_number;
    step.plain = true;
    step.whole = false;
    for (size_t i = 0; i < rows.size(); ++i) {
        const SampleRequest& request = rows[i];
        Held& held = step.held[i];
        // A pending token is of the sequence that had the state row before.
        if (held.plain && request.pending != 0 && held.state == request.state &&
            held.user == users_[held.state]) {
            out[i].position += request.position - held.position;
            held.position = request.position;
            step.wanted.push_back(out[i].top);
        } else {
            held.plain = false;
            BATON_TRY(describe_anew(stream, step, request, i, edits, staged));
            step.plain = step.plain && held.plain;
        }
        step.whole = step.whole || held.whole;
    }
    *reinterpret_cast<sampling::Header*>(step.upload.data()) = {static_cast<uint32_t>(rows.size()),
                                                                step_number, edits, 0};
    return {};
}

bool DeviceSampler::follow(uint32_t step_number) {
    const Step& before = steps_[(step_number - 1) % kBuffers];
    if (before.number != step_number - 1 || !before.plain) return false;
    Step& step = steps_[step_number % kBuffers];
    step.wanted = before.wanted;
    if (!step.masked.empty()) step.masked.clear();
    step.number = step_number;
    step.plain = true;
    step.whole = before.whole;
    return true;
}

Expected<void> DeviceSampler::prepare(cudaStream_t stream, uint32_t step_number,
                                      std::span<const SampleRequest> rows) {
    BATON_TRY(describe(stream, step_number, rows));
    const Step& step = steps_[step_number % kBuffers];
    const uint32_t edits = reinterpret_cast<const sampling::Header*>(step.upload.data())->edits;
    BATON_CUDA_TRY(cudaMemcpyAsync(upload_.data(), step.upload.data(), edits_at_ + edits * sizeof(Edit),
                                   cudaMemcpyHostToDevice, stream),
                   "uploading sampling settings");
    return {};
}

cudaError_t DeviceSampler::run(const Launch& launch, float* logits, uint32_t rows, uint32_t* counter,
                               bool whole) {
    if (rows > rows_max_) return cudaErrorInvalidValue;
    sampling::Args args = args_;
    args.logits = logits;
    args.step = counter;
    return sampling::launch_sample(launch, args, rows, whole);
}

cudaError_t DeviceSampler::wait_for_masks(const Launch& launch, float* logits, uint32_t rows) {
    if (rows == 0 || rows > rows_max_) return rows == 0 ? cudaSuccess : cudaErrorInvalidValue;
    sampling::Args args = args_;
    args.logits = logits;
    return sampling::launch_masks(launch, args, rows);
}

void DeviceSampler::expect_masks(uint32_t step, const std::vector<bool>& masked) {
    steps_[step % kBuffers].masked = masked;
    auto* words = mask_words_.as<uint64_t>() + size_t{step % kBuffers} * rows_max_;
    for (size_t row = 0; row < masked.size() && row < rows_max_; ++row)
        if (!masked[row]) std::atomic_ref(words[row]).store(sampling::mask_word(step, false), std::memory_order_release);
}

void DeviceSampler::allow(uint32_t step, uint32_t row, std::span<const uint32_t> mask) {
    if (row >= rows_max_) return;
    const size_t place = size_t{step % kBuffers} * rows_max_ + row;
    std::ranges::copy(mask.first(std::min<size_t>(mask.size(), args_.mask_size)), masks_.as<uint32_t>() + place * args_.mask_size);
    std::atomic_ref(mask_words_.as<uint64_t>()[place]).store(sampling::mask_word(step, true), std::memory_order_release);
}

bool DeviceSampler::ready(uint32_t step) const {
    const size_t rows = steps_[step % kBuffers].wanted.size();
    const auto seen = [step](const uint32_t& word) {
        return std::atomic_ref(const_cast<uint32_t&>(word)).load(std::memory_order_acquire) == step;
    };
    if (rows == 0) return seen(ended_.as<uint32_t>()[step % kBuffers]);
    const sampling::Head* head = heads(step);
    for (size_t i = rows; i-- > 0;)
        if (!seen(head[i].step)) return false;
    return true;
}

void DeviceSampler::take(uint32_t step_number, std::vector<wire::Token>& tokens) {
    const Step& step = steps_[step_number % kBuffers];
    const sampling::Head* head = heads(step_number);
    const auto* tops = tops_.as<sampling::Top>() + size_t{step_number % kBuffers} * rows_max_;
    tokens.resize(step.wanted.size());
    for (size_t i = 0; i < step.wanted.size(); ++i) {
        wire::Token& token = tokens[i];
        token.id = head[i].id;
        token.logprob = step.wanted[i] < 0 ? 0.0f : head[i].logprob;
        if (!token.top.empty()) token.top.clear();
        if (step.wanted[i] <= 0) continue;
        const uint32_t n = std::min(tops[i].count, kTopMax);
        const bool masked = i < step.masked.size() && step.masked[i];
        for (uint32_t k = 0; k < n; ++k) {
            if (masked && tops[i].logprob[k] <= kForbidden) break;  // fewer were allowed
            token.top.emplace_back(tops[i].id[k], tops[i].logprob[k]);
        }
    }
}

}  // namespace

Expected<std::unique_ptr<Sampler>> Sampler::create(uint32_t vocab, uint32_t rows_max,
                                                   uint32_t states) {
    if (vocab == 0 || vocab > sampling::kVocabMax || rows_max == 0 || states == 0 ||
        rows_max > 65535)
        return fail(ErrorCode::kInvalidArgument, "the sampler cannot serve a vocabulary of " +
                                                     std::to_string(vocab) + " with " +
                                                     std::to_string(rows_max) + " rows and " +
                                                     std::to_string(states) + " states");
    auto sampler = std::make_unique<DeviceSampler>(vocab, rows_max, states);
    BATON_TRY(sampler->allot());
    return sampler;
}

}  // namespace baton::backend::cuda
