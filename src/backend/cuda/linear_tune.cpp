// Tuning: every candidate runs a few times in a row over copies of the weights that no cache holds. What comes near the quickest
// runs again as a longer chain in a graph, as a step is, and the quickest of these is kept.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "backend/cuda/linear_gate.hpp"
#include "backend/cuda/linear_impl.hpp"

namespace baton::backend::cuda {

namespace {

constexpr size_t kColdBytes = size_t{160} << 20;  // more than an L2 holds
constexpr uint32_t kCopiesMax = 24;
constexpr size_t kBenchMax = size_t{1} << 30;     // bytes of x or of results
constexpr double kChainUs = 100;                  // a measurement's chain should take about this
constexpr float kNear = 1.3f;      // worth a try among other kernels
constexpr size_t kNearMost = 8;
constexpr uint32_t kNearRows = 64;  // where rings, which rank otherwise between others than alone, are most of what there is:
constexpr float kNearRing = 1.5f;
constexpr size_t kNearRingMost = 10;
constexpr uint32_t kAlikeFrom = 16;  // rows from which, and to which, each form of `slab`, late and not, is among what is tried in the step: one kernel
constexpr uint32_t kAlikeTo = 32;    // for all products of a layer can be quicker there than the quickest of each
constexpr float kNearAlike = 1.8f;
constexpr float kWorthAGraph = 1.25f;             // of those that run in a row
constexpr size_t kGraphsMost = 6;
constexpr uint32_t kRowLinks = 6;                 // products in a row
constexpr uint32_t kLibraryFirst = 128;           // rows from which the clock sinks under load, so that short measurements mislead:
constexpr float kTie = 1.03f;                     // the library's first answer is taken where it is within this of the best
constexpr double kLongUs = 60;                    // products of this length need no graph
constexpr float kSettled = 1.1f;                  // kernels for many rows within this of the quickest
constexpr size_t kSettledMost = 3;                // are timed again beside what else would be taken,
constexpr int kSettledRounds = 3;                 // in turns
constexpr double kSettledUs = 1000;               // of this length, so that the clock is the same for all. In long runs, which power
constexpr float kWorthBulk = 0.965f;              // bounds, the library's come out better by 3 to 6 % than in such turns
constexpr float kHopeless = 1.5f;                 // no second look at a candidate this much slower than the best

/// The measured form of the library's own first answer, if it has one.
const Choice* library_first(const std::vector<Choice>& measured, const std::vector<Choice>& unmeasured) {
    const auto of_library = [](const Choice& c) { return c.kind == Kind::kLt; };
    const auto first = std::find_if(unmeasured.begin(), unmeasured.end(), of_library);
    if (first == unmeasured.end()) return nullptr;
    const auto found = std::find_if(measured.begin(), measured.end(), [&](const Choice& c) { return of_library(c) && c.algo == first->algo; });
    return found == measured.end() ? nullptr : &*found;
}

/// About what a product takes at best.
double floor_us_of(const Matrix& matrix, uint32_t m) {
    const double bytes = 2.0 * matrix.n * matrix.k + 2.0 * m * (matrix.k + matrix.n);
    return 2 + std::max(bytes / 4e6, 2e-6 * m * matrix.n * matrix.k / 600);
}

}  // namespace

/// Device memory of one tuning: x, results, copies of the weights; and what measuring needs.
struct LinearImpl::Bench {
    cudaStream_t stream = nullptr;
    DeviceBuffer x;
    DeviceBuffer out;
    DeviceBuffer copies;
    uint32_t copy_count = 1;
    uint32_t rows = 0;  // largest m that fits
    Handle<cudaEvent_t, cudaEventDestroy> begin;
    Handle<cudaEvent_t, cudaEventDestroy> end;
    PinnedBuffer word;    // opens the gate
    uint32_t ticket = 0;

    [[nodiscard]] const void* weights(const Matrix& matrix, uint32_t i) const {
        const uint32_t at = i % copy_count;
        const size_t bytes = size_t{matrix.n} * matrix.k * 2;
        return at == 0 ? matrix.w : copies.data() + (at - 1) * bytes;
    }
    Expected<void> make(const Matrix& matrix, uint32_t rows_max, cudaStream_t on);
};

Expected<void> LinearImpl::Bench::make(const Matrix& matrix, uint32_t rows_max, cudaStream_t on) {
    stream = on;
    const size_t x_row = size_t{matrix.k} * 2;
    const size_t out_row = size_t{result_columns(matrix)} * 4;
    for (rows = rows_max;; rows /= 2) {
        if (rows > 1 && rows * std::max(x_row, out_row) > kBenchMax) continue;
        auto a = DeviceBuffer::make(rows * x_row, "tuning");
        auto b = DeviceBuffer::make(rows * out_row, "tuning");
        if (a && b) {
            x = std::move(*a);
            out = std::move(*b);
            break;
        }
        if (rows <= 1) return fail(a ? b.error() : a.error());
    }
    const size_t bytes = size_t{matrix.n} * matrix.k * 2;
    const auto wanted = static_cast<uint32_t>(std::min<size_t>(kCopiesMax, (kColdBytes + bytes - 1) / bytes));
    for (copy_count = wanted; copy_count > 1; copy_count /= 2)
        if (auto memory = DeviceBuffer::make((copy_count - 1) * bytes, "tuning")) {
            copies = std::move(*memory);
            break;
        }
    copy_count = std::max(copy_count, 1u);
    for (uint32_t i = 1; i < copy_count; ++i)
        BATON_CUDA_TRY(cudaMemcpyAsync(copies.data() + (i - 1) * bytes, matrix.w, bytes, cudaMemcpyDeviceToDevice, on), "tuning");
    for (size_t done = 0; done < rows * x_row; done += bytes)  // rows of x are weights: values as good as any
        BATON_CUDA_TRY(cudaMemcpyAsync(x.data() + done, matrix.w, std::min(bytes, rows * x_row - done), cudaMemcpyDeviceToDevice, on),
                       "tuning");
    BATON_CUDA_TRY(cudaMemsetAsync(out.data(), 0, rows * out_row, on), "tuning");
    cudaEvent_t events[2] = {};
    BATON_CUDA_TRY(cudaEventCreate(&events[0]), "an event");
    begin = Event(events[0]);
    BATON_CUDA_TRY(cudaEventCreate(&events[1]), "an event");
    end = Event(events[1]);
    BATON_TRY_ASSIGN(word, PinnedBuffer::make(sizeof(uint32_t)));
    *word.as<uint32_t>() = 0;
    return {};
}

Expected<void> LinearImpl::screen(const Matrix& matrix, Bench& bench, uint32_t m, uint32_t links, Choice& choice) {
    const Launch launch = {bench.stream, pdl_};
    const auto run = [&](uint32_t i) {
        Matrix copy = matrix;
        copy.w = bench.weights(matrix, i);
        copy.ahead = nullptr;
        return run_as(launch, copy, bench.x.data(), m, bench.out.data(), choice);
    };
    choice.microseconds = std::numeric_limits<float>::infinity();
    cudaError_t status = run(0);  // loads the kernel
    if (status == cudaSuccess) {
        ++bench.ticket;
        BATON_CUDA_TRY(gate(bench.stream, bench.word.as<uint32_t>(), bench.ticket), "tuning");
        BATON_CUDA_TRY(cudaEventRecord(bench.begin.get(), bench.stream), "tuning");
        for (uint32_t i = 0; i < links && status == cudaSuccess; ++i) status = run(i + 1);
        const cudaError_t recorded = cudaEventRecord(bench.end.get(), bench.stream);
        std::atomic_ref(*bench.word.as<uint32_t>()).store(bench.ticket, std::memory_order_release);
        BATON_CUDA_TRY(recorded, "tuning");
        BATON_CUDA_TRY(cudaEventSynchronize(bench.end.get()), "a product kernel");
    }
    if (status != cudaSuccess) {  // a candidate that cannot run is not chosen
        static_cast<void>(cudaGetLastError());
        return {};
    }
    ++measured_;
    float ms = 0;
    BATON_CUDA_TRY(cudaEventElapsedTime(&ms, bench.begin.get(), bench.end.get()), "tuning");
    choice.microseconds = ms * 1000.0f / static_cast<float>(links);
    return {};
}

Expected<void> LinearImpl::measure(const Matrix& matrix, Bench& bench, uint32_t m, Choice& choice, float limit_us) {
    const double floor_us = floor_us_of(matrix, m);
    const uint32_t most = std::max(2u, bench.copy_count);
    const uint32_t links = std::clamp(static_cast<uint32_t>(kChainUs / floor_us), 2u, most);
    const Launch launch = {bench.stream, pdl_};
    cudaGraph_t graph = nullptr;
    BATON_CUDA_TRY(cudaStreamBeginCapture(bench.stream, cudaStreamCaptureModeThreadLocal), "tuning");
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < links && status == cudaSuccess; ++i) {
        Matrix copy = matrix;
        copy.w = bench.weights(matrix, i);
        copy.ahead = nullptr;
        status = run_as(launch, copy, bench.x.data(), m, bench.out.data(), choice);
    }
    const cudaError_t ended = cudaStreamEndCapture(bench.stream, &graph);
    cudaGraphExec_t exec = nullptr;
    if (status == cudaSuccess) status = ended;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    const GraphExec owner(exec);
    choice.microseconds = std::numeric_limits<float>::infinity();
    if (status != cudaSuccess) {  // a candidate that cannot run is not chosen
        static_cast<void>(cudaGetLastError());
        return {};
    }
    ++measured_;
    for (int round = 0; round < 3; ++round) {
        BATON_CUDA_TRY(cudaEventRecord(bench.begin.get(), bench.stream), "tuning");
        BATON_CUDA_TRY(cudaGraphLaunch(exec, bench.stream), "tuning");
        BATON_CUDA_TRY(cudaEventRecord(bench.end.get(), bench.stream), "tuning");
        BATON_CUDA_TRY(cudaEventSynchronize(bench.end.get()), "a product kernel");
        float ms = 0;
        BATON_CUDA_TRY(cudaEventElapsedTime(&ms, bench.begin.get(), bench.end.get()), "tuning");
        const float us = ms * 1000.0f / static_cast<float>(links);
        if (round > 0) choice.microseconds = std::min(choice.microseconds, us);
        if (round > 0 && us > limit_us) break;
        if (round == 0 && ms > 2.0f && us > 3 * limit_us) {
            choice.microseconds = us;
            break;
        }
    }
    return {};
}

Expected<void> LinearImpl::settle(const Matrix& matrix, Bench& bench, uint32_t m, std::vector<Choice>& found) {
    const auto is_bulk = [](const Choice& c) { return c.kind == Kind::kBulk; };
    if (std::none_of(found.begin(), found.end(), is_bulk)) return {};
    std::vector<Choice> last;  // what would be taken without kernels for many rows, and the best of these
    const auto other = std::find_if_not(found.begin(), found.end(), is_bulk);
    if (other != found.end()) {
        const Choice* first = library_first(found, candidates(matrix, m));
        last.push_back(m >= kLibraryFirst && first != nullptr && first->microseconds <= kTie * other->microseconds ? *first : *other);
    }
    for (const Choice& choice : found)
        if (is_bulk(choice) && choice.microseconds <= kSettled * found.front().microseconds && last.size() < kSettledMost) last.push_back(choice);
    const auto links = static_cast<uint32_t>(std::clamp(kSettledUs / static_cast<double>(found.front().microseconds), 1.0, 32.0));
    std::vector<float> sums(last.size());
    for (int round = 0; round < kSettledRounds && last.size() > 1; ++round)
        for (size_t i = 0; i < last.size(); ++i) {
            BATON_TRY(screen(matrix, bench, m, links, last[i]));
            if (round > 0) sums[i] += last[i].microseconds / (kSettledRounds - 1);  // the first warms
        }
    for (size_t i = 0; i < last.size() && last.size() > 1; ++i) last[i].microseconds = sums[i];
    const auto rank = [&](const Choice& c) { return c.microseconds / (is_bulk(c) ? kWorthBulk : 1.0f); };
    const Choice best = *std::min_element(last.begin(), last.end(), [&](const Choice& a, const Choice& b) { return rank(a) < rank(b); });
    const auto same = std::find_if(found.begin(), found.end(), [&](const Choice& c) { return describe(c) == describe(best) && c.algo == best.algo; });
    *same = best;
    std::rotate(found.begin(), same, same + 1);
    return {};
}

Expected<std::vector<Choice>> LinearImpl::measure_all(const Matrix& matrix, uint32_t m, Bench& bench) {
    std::vector<Choice> found = candidates(matrix, m);
    const auto quicker = [](const Choice& a, const Choice& b) { return a.microseconds < b.microseconds; };
    const double floor_us = floor_us_of(matrix, m);
    const bool brief = floor_us < kLongUs;
    for (Choice& choice : found) {
        BATON_TRY(screen(matrix, bench, m, brief ? kRowLinks : 2, choice));
    }
    std::stable_sort(found.begin(), found.end(), quicker);
    if (!brief || found.empty()) {
        BATON_TRY(settle(matrix, bench, m, found));
        return found;
    }
    const float worth = kWorthAGraph * found.front().microseconds;
    float best = std::numeric_limits<float>::infinity();
    size_t graphs = 0;
    for (; graphs < std::min(found.size(), kGraphsMost) && found[graphs].microseconds <= worth; ++graphs) {
        BATON_TRY(measure(matrix, bench, m, found[graphs], best * kHopeless));
        best = std::min(best, found[graphs].microseconds);
    }
    std::stable_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(graphs), quicker);
    BATON_TRY(settle(matrix, bench, m, found));
    return found;
}

Expected<std::vector<Choice>> LinearImpl::measure_all(const Matrix& matrix, uint32_t m, cudaStream_t stream) {
    BATON_TRY(reserve(matrix));
    Bench bench;
    BATON_TRY(bench.make(matrix, m, stream));
    if (bench.rows < m) return fail(ErrorCode::kUnavailable, "no device memory to measure " + std::to_string(m) + " rows");
    return measure_all(matrix, m, bench);
}

Expected<void> LinearImpl::tune_bucket(const Matrix& matrix, Bench& bench, Entry& entry, uint32_t bucket) {
    const uint32_t m = rows_of(bucket);
    BATON_TRY_ASSIGN(const std::vector<Choice> found, measure_all(matrix, m, bench));
    if (found.empty() || found.front().microseconds == std::numeric_limits<float>::infinity())
        return fail(ErrorCode::kUnsupported, "no kernel for a product of " + std::to_string(matrix.n) + " x " +
                                                 std::to_string(matrix.k) + " with " + std::to_string(m) + " rows");
    const Choice* best = &found.front();
    const bool settled = std::any_of(found.begin(), found.end(), [](const Choice& c) { return c.kind == Kind::kBulk; });
    if (m >= kLibraryFirst && !settled)
        if (const Choice* first = library_first(found, candidates(matrix, m)); first != nullptr && first->microseconds <= kTie * best->microseconds)
            best = first;
    entry.by_bucket[bucket] = *best;
    entry.known[bucket] = true;
    cached_[{entry.key, bucket}] = *best;
    entry.near[bucket] = {*best};
    for (const Choice& choice : found)
        if (&choice != best && choice.microseconds <= (m == kNearRows ? kNearRing : kNear) * best->microseconds &&
            entry.near[bucket].size() < (m == kNearRows ? kNearRingMost : kNearMost))
            entry.near[bucket].push_back(choice);
    if (m < kAlikeFrom || m > kAlikeTo) return {};
    auto& near = entry.near[bucket];
    for (const Choice& choice : found) {
        const auto alike = [&](const Choice& c) { return c.kind == Kind::kSlab && c.slab.variant == choice.slab.variant && c.slab.late == choice.slab.late; };
        if (alike(choice) && choice.microseconds <= kNearAlike * best->microseconds && std::none_of(near.begin(), near.end(), alike)) near.push_back(choice);
    }
    return {};
}

Expected<void> LinearImpl::tune(const Matrix& matrix, cudaStream_t stream) {
    if (!valid(matrix))
        return fail(ErrorCode::kUnsupported, "a product of " + std::to_string(matrix.n) + " x " + std::to_string(matrix.k) +
                                                 ": k must be a multiple of 8, and n of 16 with SwiGLU");
    const auto began = std::chrono::steady_clock::now();
    BATON_TRY(reserve(matrix));
    Entry& entry = entry_of(matrix);
    const uint32_t last = bucket_of(options_.rows_max);
    std::vector<uint32_t> missing;
    for (uint32_t b = 0; b <= last; ++b) {
        if (entry.known[b]) continue;
        const auto found = cached_.find({entry.key, b});
        if (found != cached_.end() && takes(matrix, rows_of(b), found->second)) {
            entry.by_bucket[b] = found->second;
            entry.known[b] = true;
        } else {
            missing.push_back(b);
        }
    }
    if (missing.empty()) return {};
    Bench bench;
    BATON_TRY(bench.make(matrix, options_.rows_max, stream));
    for (const uint32_t b : missing)
        if (rows_of(b) <= bench.rows) BATON_TRY(tune_bucket(matrix, bench, entry, b));
    BATON_CUDA_TRY(cudaStreamSynchronize(stream), "tuning");
    tuned_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    if (auto saved = save(); !saved) cache_error_ = std::move(saved).error().message;
    return {};
}

Expected<void> LinearImpl::save() {
    if (options_.cache_folder.empty()) return {};
    Choices all = load_choices(options_.cache_folder, identity_);  // what others tuned meanwhile
    // Only this object's own shapes: of others it may know what has been replaced since.
    for (const auto& entry : entries_)
        for (uint32_t b = 0; b < kBuckets; ++b)
            if (entry->known[b]) all[{entry->key, b}] = entry->by_bucket[b];
    cached_ = std::move(all);
    return save_choices(options_.cache_folder, identity_, cached_);
}

}  // namespace baton::backend::cuda
