#include "backend/cpu_backend.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

namespace baton::backend {

namespace {

constexpr uint32_t kInlineRows = 4;  // fewer rows than this are not worth waking a thread for
constexpr size_t kChunkRows = 256;
constexpr size_t kChunkBytes = 24 * 1024;  // weights a thread claims at once when decoding
constexpr size_t kChunkMacs = size_t{1} << 22;
static_assert(CpuBackend::kPieceFloats >= 2 * kGroupRows * kChunkRows);

size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

}  // namespace

struct CpuBackend::Progress {
    const std::function<void(uint32_t)>& layer_done;
    uint32_t layer = 0;
    bool pending = false;
    void operator()() {
        if (!pending) return;
        pending = false;
        if (layer_done) layer_done(layer);
    }
};

void CpuBackend::warm() {
    constexpr size_t kLine = 64;
    std::atomic<uint32_t> sink{0};  // keeps the reads alive
    const auto touch = [&](const PackedMatrix& m) {
        uint32_t sum = 0;
        for (size_t at = 0; at < m.bytes(); at += kLine) sum += static_cast<uint32_t>(m.data[at]);
        sink.fetch_add(sum, std::memory_order_relaxed);
    };
    pool_.run(static_cast<uint32_t>(program_.layers.size()), [&](uint32_t layer, uint32_t) {
        for (const Stage& stage : program_.layers[layer])
            if (const auto* products = std::get_if<ProductStage>(&stage))
                for (const Product& p : products->products) touch(p.weight);
    });
    touch(program_.head);
}

Expected<void> CpuBackend::forward(const Batch& batch, std::span<float> logits,
                                   const std::function<void(uint32_t layer)>& layer_done) {
    BATON_TRY(check(batch, logits));
    start(batch);
    Progress progress{layer_done};
    for (uint32_t layer = 0; layer < program_.shape.layers; ++layer) run_layer(layer, progress);
    progress();
    head(logits);
    return {};
}

/// Embedding rows and rotations of the batch.
void CpuBackend::start(const Batch& batch) {
    rows_.clear();
    wanted_.clear();
    for (const Slice& s : batch.slices) {
        for (uint32_t i = 0; i < s.tokens; ++i) {
            const uint32_t position = s.position + i;
            rows_.push_back({position, s.blocks[position / options_.block_tokens]});
        }
        if (s.logits) wanted_.push_back(static_cast<uint32_t>(rows_.size()) - 1);
    }
    active_ = static_cast<uint32_t>(rows_.size());
    attention_->prepare(batch);
    const std::function<void(uint32_t)> none;
    Progress quiet{none};
    each_row(active_, quiet, [&](uint32_t row) { embed(batch.tokens[row], row); });
}

void CpuBackend::embed(TokenId token, uint32_t row) {
    tensor::dequantize_row(embedding_.dtype, embedding_.row(static_cast<size_t>(token)),
                           slot(Slot::kHidden, row), program_.shape.hidden);
    const size_t half = program_.shape.head_dim / 2;
    const auto position = static_cast<float>(rows_[row].position);
    for (size_t i = 0; i < half; ++i) {
        // The angle is an f32 product as in the models' reference code; its sine and cosine are
        // then exact to f32.
        const auto angle = static_cast<double>(position * rope_.inv_freq[i]);
        act_.cos[row * half + i] = static_cast<float>(std::cos(angle)) * rope_.scale;
        act_.sin[row * half + i] = static_cast<float>(std::sin(angle)) * rope_.scale;
    }
}

/// In the last layer rows whose logits nobody wants end with their keys and values.
void CpuBackend::run_layer(uint32_t layer, Progress& progress) {
    const std::vector<Stage>& stages = program_.layers[layer];
    const bool ends =
        program_.tail && layer + 1 == program_.layers.size() && wanted_.size() < rows_.size();
    for (size_t i = 0; i < stages.size(); ++i) {
        const Stage& stage = stages[i];
        const bool cut = ends && i == program_.tail->attention;
        if (cut && wanted_.empty()) return;
        if (cut) attention_->keep_wanted();
        if (const auto* rows = std::get_if<RowStage>(&stage)) {
            run_rows(layer, rows->ops, progress);
        } else if (const auto* products = std::get_if<ProductStage>(&stage)) {
            run_products(layer, *products, progress);
        } else {
            attention_->run(pool_, layer, slot(Slot::kQ, 0), slot(Slot::kAttn, 0), progress);
        }
        if (cut) keep_wanted();
    }
}

/// Moves the wanted rows to the front of what the rest of the step reads.
void CpuBackend::keep_wanted() {
    active_ = static_cast<uint32_t>(wanted_.size());
    for (const Slot s : program_.tail->reads)
        for (uint32_t row = 0; row < active_; ++row)
            if (wanted_[row] != row)
                std::memcpy(slot(s, row), slot(s, wanted_[row]),
                            slot_width(program_.shape, s) * sizeof(float));
    std::iota(wanted_.begin(), wanted_.end(), 0u);
}

template <class Fn>
void CpuBackend::each_row(uint32_t rows, Progress& progress, const Fn& fn) {
    if (rows <= kInlineRows) {
        for (uint32_t r = 0; r < rows; ++r) fn(r);
        return;
    }
    const uint32_t per_chunk = std::clamp(rows / (pool_.threads() * 4), 1u, 16u);
    pool_.run(
        static_cast<uint32_t>(ceil_div(rows, per_chunk)),
        [&](uint32_t chunk, uint32_t) {
            for (uint32_t r = chunk * per_chunk; r < std::min(rows, (chunk + 1) * per_chunk); ++r)
                fn(r);
        },
        progress);
}

/// From here on the KV of `layer` may be complete: says so once the next stage has been handed to
/// the threads.
void CpuBackend::run_rows(uint32_t layer, const std::vector<RowOp>& ops, Progress& progress) {
    each_row(active_, progress, [&](uint32_t row) {
        for (const RowOp& op : ops) row_op(op, layer, row);
    });
    for (const RowOp& op : ops) {
        if (!std::holds_alternative<AppendOp>(op)) continue;
        progress.layer = layer;
        progress.pending = true;
    }
}

void CpuBackend::row_op(const RowOp& op, uint32_t layer, uint32_t row) {
    const ModelShape& s = program_.shape;
    if (const auto* n = std::get_if<NormOp>(&op)) {
        norm(*n, row, row);
    } else if (std::holds_alternative<RopeOp>(op)) {
        const size_t half = s.head_dim / 2;
        const float* cos = act_.cos + row * half;
        const float* sin = act_.sin + row * half;
        float* q = slot(Slot::kQ, row);
        float* k = slot(Slot::kK, row);
        for (uint32_t h = 0; h < s.heads; ++h)
            kernels_.rope(q + size_t{h} * s.head_dim, cos, sin, half);
        for (uint32_t h = 0; h < s.kv_heads; ++h)
            kernels_.rope(k + size_t{h} * s.head_dim, cos, sin, half);
    } else if (std::holds_alternative<AppendOp>(op)) {
        pages_.append(layer, rows_[row].block, rows_[row].position, slot(Slot::kK, row),
                      slot(Slot::kV, row));
    } else {
        kernels_.swiglu(slot(Slot::kGate, row), slot(Slot::kUp, row), slot(Slot::kAct, row), s.ffn);
    }
}

void CpuBackend::norm(const NormOp& op, uint32_t row_in, uint32_t row_out) {
    const float* in = slot(op.in, row_in);
    float* out = slot(op.out, row_out);
    const size_t n = op.weight.size();
    for (uint32_t g = 0; g < op.groups; ++g)
        kernels_.rms_norm(in + g * n, op.weight.data(), out + g * n, n, op.eps);
}

void CpuBackend::prepare_row(ActKind kind, const float* in, size_t width, uint32_t row) {
    if (kind == ActKind::kInt8) quantize(in, width, width, row, 0, 0);
    if (kind == ActKind::kBF16) kernels_.bf16_row(in, width, act_.bf16 + row * width);
}

/// Columns [col, col + n) of one row of a buffer that is `width` wide, all multiples of a block.
void CpuBackend::quantize(const float* in, size_t n, size_t width, uint32_t row, size_t col,
                          int side) {
    const size_t lane = row % kPanelRows;
    const size_t at = row / kPanelRows * (width / kBlockCols) + col / kBlockCols;
    kernels_.quantize_row(in, n, act_.q[side] + at * kPanelBlockBytes + lane * kBlockCols,
                          act_.meta[side] + at * kPanelBlockMeta + lane * 4);
}

ActView CpuBackend::act_view(const float* in, size_t width, int side) const {
    return {act_.q[side], act_.meta[side], act_.bf16, in, width};
}

void CpuBackend::run_products(uint32_t layer, const ProductStage& stage, Progress& progress) {
    const size_t width = slot_width(program_.shape, stage.in);
    const uint32_t rows = active_;
    bool wants[3] = {};  // ways to prepare the input
    size_t groups = 0, bytes = 0;
    for (const Product& p : stage.products) {
        wants[static_cast<size_t>(kernels_.act_kind(p.weight.kind))] = true;
        groups += p.weight.groups;
        bytes += p.weight.bytes();
    }
    bool appends = false;
    for (const RowOp& op : stage.before) appends = appends || std::holds_alternative<AppendOp>(op);
    if (!stage.in_ready)
        each_row(rows, progress, [&](uint32_t row) {
            for (const RowOp& op : stage.before) row_op(op, layer, row);
            for (size_t k = 0; k < 2; ++k)
                if (wants[k]) prepare_row(static_cast<ActKind>(k), slot(stage.in, row), width, row);
        });
    if (appends) progress.layer = layer, progress.pending = true;
    if (stage.swiglu) groups /= 2;
    const size_t chunk_rows = std::min<size_t>(rows, kChunkRows);
    const size_t fill = ceil_div(groups, size_t{pool_.threads()} * 2);
    size_t per_chunk = std::clamp<size_t>(
        rows > 1 ? kChunkMacs / (chunk_rows * width * kGroupRows) : kChunkBytes / (bytes / groups),
        1, fill);
    if (stage.swiglu) {
        // Whole blocks of 32 columns, and what fits a thread's pieces.
        per_chunk = std::min(per_chunk, kPieceFloats / (chunk_rows * kGroupRows));
        per_chunk = std::max<size_t>(2, per_chunk / 2 * 2);
    }
    const size_t n_chunks = ceil_div(groups, per_chunk), m_chunks = ceil_div(rows, kChunkRows);
    pool_.run(
        static_cast<uint32_t>(n_chunks * m_chunks),
        [&](uint32_t chunk, uint32_t thread) {
            const size_t n = chunk / m_chunks * per_chunk, end = std::min(groups, n + per_chunk);
            const size_t m = chunk % m_chunks * kChunkRows,
                         m_end = std::min<size_t>(rows, m + kChunkRows);
            if (stage.swiglu)
                gate_up_chunk(stage, n, end, m, m_end, thread);
            else
                products_chunk(stage, n, end, m, m_end);
        },
        progress);
}

/// Groups [first, last), counted through all products of the stage, for rows [m0, m1).
void CpuBackend::products_chunk(const ProductStage& stage, size_t first, size_t last, size_t m0,
                                size_t m1) {
    const ActView a =
        act_view(slot(stage.in, 0), slot_width(program_.shape, stage.in), stage.in_ready ? 1 : 0);
    size_t base = 0;
    for (const Product& p : stage.products) {
        const size_t g0 = std::max(first, base), g1 = std::min(last, base + p.weight.groups);
        if (g0 < g1) {
            const OutView out{slot(p.out, 0), p.weight.rows,
                              p.bias.empty() ? nullptr : p.bias.data(), p.add};
            kernels_.gemm(p.weight.view(), g0 - base, g1 - base, a, m0, m1, out);
        }
        base += p.weight.groups;
    }
}

/// kAct for rows [m0, m1) and the columns of groups [first, last); gate and up stay in the thread's
/// pieces.
void CpuBackend::gate_up_chunk(const ProductStage& stage, size_t first, size_t last, size_t m0,
                               size_t m1, uint32_t thread) {
    const size_t ffn = program_.shape.ffn, n0 = first * kGroupRows,
                 ld = (last - first) * kGroupRows;
    const ActView a = act_view(slot(stage.in, 0), slot_width(program_.shape, stage.in));
    float* piece[2];
    for (size_t i = 0; i < 2; ++i) {
        const Product& p = stage.products[i];
        piece[i] = act_.pieces + (2 * thread + i) * kPieceFloats;
        const OutView out{piece[i], ld, p.bias.empty() ? nullptr : p.bias.data(), false, m0, n0};
        kernels_.gemm(p.weight.view(), first, last, a, m0, m1, out);
    }
    const size_t n = std::min(last * kGroupRows, ffn) - n0;
    for (size_t m = m0; m < m1; ++m) {
        const auto row = static_cast<uint32_t>(m);
        float* gate = piece[0] + (m - m0) * ld;
        float* act = stage.quantize_act ? gate : slot(Slot::kAct, row) + n0;
        kernels_.swiglu(gate, piece[1] + (m - m0) * ld, act, n);
        if (stage.quantize_act) quantize(act, n, ffn, row, n0, 1);
    }
}

/// Final norm and head of the wanted rows.
void CpuBackend::head(std::span<float> logits) {
    const size_t width = program_.shape.hidden;
    const PackedView w = program_.head.view();
    const ActKind kind = kernels_.act_kind(w.kind);
    const auto rows = static_cast<uint32_t>(wanted_.size());
    if (rows == 0) return;
    for (uint32_t row = 0; row < rows; ++row) {
        norm(program_.final_norm, wanted_[row], row);
        prepare_row(kind, slot(Slot::kNorm, row), width, row);
    }
    const ActView a = act_view(slot(Slot::kNorm, 0), width);
    const OutView out{logits.data(), program_.shape.vocab, nullptr, false};
    const size_t per_chunk = std::clamp<size_t>(
        rows > 1 ? kChunkMacs / (rows * width * kGroupRows) : 2 * kChunkBytes / w.group_bytes, 1,
        w.groups);
    pool_.run(static_cast<uint32_t>(ceil_div(w.groups, per_chunk)), [&](uint32_t chunk, uint32_t) {
        kernels_.gemm(w, chunk * per_chunk, std::min(w.groups, (chunk + 1) * per_chunk), a, 0, rows,
                      out);
    });
}

}  // namespace baton::backend
