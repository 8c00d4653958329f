#include "backend/cuda/weights.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/cuda/convert.hpp"

namespace baton::backend::cuda {

namespace {

constexpr size_t kAlign = 256;
constexpr size_t kSlotBytes = size_t{2} << 20;
constexpr uint32_t kSlots = 2;  ///< of each thread: one is filled while the other is copied
constexpr uint32_t kThreadsMax = 12;
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14

/// A tensor and where it goes. Without `view` the place is filled with zeros.
struct Placement {
    const tensor::TensorView* view = nullptr;
    size_t at = 0;
    size_t elements = 0;
    bool f32 = false;
};

/// Gives each tensor its place in the allocation.
class Places {
  public:
    size_t reserve(size_t bytes) {
        bytes_ = (bytes_ + kAlign - 1) / kAlign * kAlign;
        const size_t at = bytes_;
        bytes_ += bytes;
        return at;
    }
    size_t matrix(const tensor::TensorView& view) {
        const size_t n = view.shape[0] * view.shape[1];
        const size_t at = reserve(n * 2);
        placements_.push_back({&view, at, n, false});
        return at;
    }
    size_t vector(const tensor::TensorView& view) {
        const size_t at = reserve(view.shape[1] * sizeof(float));
        placements_.push_back({&view, at, view.shape[1], true});
        return at;
    }
    /// The parts one after the other, without gaps.
    size_t joined(const std::vector<tensor::TensorView>& views, const std::vector<tensor::TensorView>& lengths, bool bias) {
        size_t total = 0;
        for (const auto& l : lengths) total += bias ? l.shape[0] : l.shape[0] * l.shape[1];
        const size_t at = reserve(total * 2);
        size_t next = at;
        for (size_t i = 0; i < views.size(); ++i) {
            const size_t n = bias ? lengths[i].shape[0] : lengths[i].shape[0] * lengths[i].shape[1];
            placements_.push_back({views[i] ? &views[i] : nullptr, next, n, false});
            next += n * 2;
        }
        return at;
    }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    [[nodiscard]] const std::vector<Placement>& all() const { return placements_; }

  private:
    size_t bytes_ = 0;
    std::vector<Placement> placements_;
};

/// Offsets of a layer; SIZE_MAX: none.
struct LayerPlaces {
    size_t attention_norm, ffn_norm, q_norm = SIZE_MAX, k_norm = SIZE_MAX;
    size_t matrix[4], bias[4];
};
struct ModelPlaces {
    Places places;
    std::vector<LayerPlaces> layers;
    size_t embedding = 0, head = 0, final_norm = 0;
};

const Projection* projections(const LayerParts& parts, size_t i) {
    const Projection* const all[] = {&parts.qkv, &parts.out, &parts.gate_up, &parts.down};
    return all[i];
}

ModelPlaces place(const Lowered& model) {
    ModelPlaces m;
    m.embedding = m.places.matrix(model.embedding);
    for (const LayerParts& parts : model.layers) {
        LayerPlaces l{};
        l.q_norm = l.k_norm = SIZE_MAX;
        l.attention_norm = m.places.vector(parts.attention_norm.weight);
        l.ffn_norm = m.places.vector(parts.ffn_norm.weight);
        if (parts.q_norm) l.q_norm = m.places.vector(parts.q_norm);
        if (parts.k_norm) l.k_norm = m.places.vector(parts.k_norm);
        for (size_t i = 0; i < 4; ++i) {
            const Projection& p = *projections(parts, i);
            l.matrix[i] = m.places.joined(p.weights, p.weights, false);
            l.bias[i] = p.biases.empty() ? SIZE_MAX : m.places.joined(p.biases, p.weights, true);
        }
        m.layers.push_back(l);
    }
    m.final_norm = m.places.vector(model.final_norm.weight);
    m.head = model.tied ? m.embedding : m.places.matrix(model.head);
    return m;
}

/// A piece of a placement that fits a slot: whole blocks of the stored format.
struct Chunk {
    const Placement* placement;
    size_t first;     ///< element
    size_t elements;
};

std::vector<Chunk> chunks_of(const std::vector<Placement>& placements) {
    constexpr size_t kElements = kSlotBytes / sizeof(float);  // a multiple of every format's block
    std::vector<Chunk> chunks;
    for (const Placement& p : placements) {
        const size_t step = p.f32 ? kElements : 2 * kElements;
        for (size_t at = 0; at < p.elements; at += step) chunks.push_back({&p, at, std::min(step, p.elements - at)});
    }
    return chunks;
}

std::span<const std::byte> stored(const tensor::TensorView& view, size_t first, size_t elements) {
    const tensor::BlockShape b = tensor::block_shape(view.dtype);
    return view.bytes.subspan(first / b.elements * b.bytes, elements / b.elements * b.bytes);
}

/// Has the kernel map the pages of a file in one go instead of one fault after the other.
void populate(std::span<const std::byte> bytes) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
    static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateRead));
}

/// Moves all chunks with several threads, each with its own stream and slots.
class Upload {
  public:
    Upload(std::vector<Chunk> chunks, std::byte* target, Elem elem) : chunks_(std::move(chunks)), target_(target), elem_(elem) {}

    Expected<void> run() {
        BATON_CUDA_TRY(cudaGetDevice(&device_), "the current device");
        const auto wanted = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
        const auto threads = static_cast<uint32_t>(std::min<size_t>(wanted, std::max<size_t>(chunks_.size(), 1)));
        BATON_TRY_ASSIGN(slots_, PinnedBuffer::make(kSlotBytes * kSlots * threads));
        std::vector<std::thread> workers;
        for (uint32_t t = 1; t < threads; ++t) workers.emplace_back([this, t] { note(work(t)); });
        note(work(0));
        for (std::thread& worker : workers) worker.join();
        if (failed_) return fail(std::move(*failed_));
        return {};
    }

  private:
    void note(Expected<void> result) {
        if (result) return;
        next_ = chunks_.size();  // the others stop
        const std::lock_guard lock(mutex_);
        if (!failed_) failed_ = std::move(result).error();
    }
    Expected<void> work(uint32_t thread) {
        BATON_CUDA_TRY(cudaSetDevice(device_), "the device of the weights");
        BATON_TRY_ASSIGN(const Stream stream, make_stream());
        Event done[kSlots];
        for (Event& event : done) {
            BATON_TRY_ASSIGN(event, make_event());
        }
        std::vector<float> scratch;
        for (uint32_t turn = 0;; turn = (turn + 1) % kSlots) {
            const size_t i = next_.fetch_add(1);
            if (i >= chunks_.size()) break;
            const Chunk& c = chunks_[i];
            std::byte* slot = slots_.as<std::byte>() + (size_t{thread} * kSlots + turn) * kSlotBytes;
            BATON_CUDA_TRY(cudaEventSynchronize(done[turn].get()), "the copy of the weights");
            const size_t unit = c.placement->f32 ? sizeof(float) : 2;
            fill(c, slot, scratch);
            BATON_CUDA_TRY(cudaMemcpyAsync(target_ + c.placement->at + c.first * unit, slot, c.elements * unit,
                                           cudaMemcpyHostToDevice, stream.get()),
                           "the copy of the weights");
            BATON_CUDA_TRY(cudaEventRecord(done[turn].get(), stream.get()), "the copy of the weights");
        }
        BATON_CUDA_TRY(cudaStreamSynchronize(stream.get()), "the copy of the weights");
        return {};
    }
    void fill(const Chunk& c, std::byte* slot, std::vector<float>& scratch) const {
        const Placement& p = *c.placement;
        if (p.view == nullptr) {
            std::memset(slot, 0, c.elements * 2);
            return;
        }
        const auto bytes = stored(*p.view, c.first, c.elements);
        if (bytes.size() > kAlign) populate(bytes);
        if (p.f32) {
            tensor::dequantize_row(p.view->dtype, bytes, reinterpret_cast<float*>(slot), c.elements);
            return;
        }
        const bool same = p.view->dtype == (elem_ == Elem::kBF16 ? tensor::DType::kBF16 : tensor::DType::kF16);
        if (same) {
            std::memcpy(slot, bytes.data(), bytes.size());
            return;
        }
        scratch.resize(c.elements);
        tensor::dequantize_row(p.view->dtype, bytes, scratch.data(), c.elements);
        to_elem(elem_, scratch.data(), c.elements, reinterpret_cast<uint16_t*>(slot));
    }

    std::vector<Chunk> chunks_;
    std::byte* target_;
    Elem elem_;
    int device_ = 0;
    PinnedBuffer slots_;
    std::atomic<size_t> next_{0};
    std::mutex mutex_;
    std::optional<Error> failed_;  ///< guarded by mutex_
};

}  // namespace

size_t weight_bytes(const Lowered& model) {
    return place(model).places.bytes();
}

Expected<Weights> load_weights(const Lowered& model, Elem elem) {
    const auto start = std::chrono::steady_clock::now();
    const ModelPlaces m = place(model);
    Weights w;
    BATON_TRY_ASSIGN(w.memory, DeviceBuffer::make(m.places.bytes(), "the weights"));
    BATON_TRY(Upload(chunks_of(m.places.all()), w.memory.data(), elem).run());
    const auto f32 = [&](size_t at) { return at == SIZE_MAX ? nullptr : reinterpret_cast<const float*>(w.memory.data() + at); };
    const auto any = [&](size_t at) -> const void* { return at == SIZE_MAX ? nullptr : w.memory.data() + at; };
    for (size_t layer = 0; layer < model.layers.size(); ++layer) {
        const LayerParts& parts = model.layers[layer];
        const LayerPlaces& l = m.layers[layer];
        const auto matrix = [&](size_t i, Out out) {
            const Projection& p = *projections(parts, i);
            return Matrix{any(l.matrix[i]), any(l.bias[i]), p.rows, p.columns, nullptr, 0, out};
        };
        Weights::Layer target;
        target.qkv = matrix(0, Out::kStore);
        target.qkv.norm = f32(l.attention_norm);
        target.qkv.eps = parts.attention_norm.eps;
        target.out = matrix(1, Out::kAdd);
        target.gate_up = matrix(2, Out::kSwiGlu);
        target.gate_up.norm = f32(l.ffn_norm);
        target.gate_up.eps = parts.ffn_norm.eps;
        target.down = matrix(3, Out::kAdd);
        // Attention leaves the weights' way free for a while: what comes after it is fetched meanwhile.
        target.qkv.ahead = target.out.w;
        target.qkv.ahead_bytes = l.matrix[2] + size_t{target.gate_up.n} * target.gate_up.k * 2 - l.matrix[1];
        target.q_norm = f32(l.q_norm);
        target.k_norm = f32(l.k_norm);
        target.qk_eps = parts.qk_eps;
        w.layers.push_back(target);
    }
    w.embedding = any(m.embedding);
    w.head = Matrix{any(m.head), nullptr, model.shape.vocab, model.shape.hidden, f32(m.final_norm), model.final_norm.eps, Out::kF32};
    w.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return w;
}

}  // namespace baton::backend::cuda
