#include "backend/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace baton::backend {

namespace {

constexpr uint32_t kSegmentUnits = 16;
constexpr uint32_t kTaskRows = 48;
constexpr size_t kPartialBytes = size_t{16} << 20;

size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

}  // namespace

Expected<AttentionRunner> AttentionRunner::make(const ModelShape& shape, const KvPages& pages,
                                                const Kernels& kernels, uint32_t threads,
                                                uint32_t slices_max) {
    AttentionRunner r(shape, pages, kernels);
    r.group_ = shape.heads / shape.kv_heads;
    r.queries_ = std::max(1u, kTaskRows / r.group_);
    r.acc_ld_ = round_up(shape.head_dim, 32);
    r.partial_floats_ = r.group_ * (r.acc_ld_ + 2);
    r.partials_max_ = static_cast<uint32_t>(kPartialBytes / (r.partial_floats_ * sizeof(float)));
    // q, q16 (half a float each), p, visible, twice (m, l, acc)
    r.scratch_rows_ =
        round_up(size_t{r.group_} * r.queries_, 16) + 16;  // kernels take 16 rows from any row on
    r.scratch_floats_ = round_up(
        r.scratch_rows_ * (shape.head_dim + r.acc_ld_ / 2 + kTileTokens + 5 + 2 * r.acc_ld_), 64);
    BATON_TRY_ASSIGN(
        r.scratch_, Buffer::make(r.scratch_floats_ * threads * sizeof(float), "attention scratch"));
    BATON_TRY_ASSIGN(r.partials_, Buffer::make(kPartialBytes, "attention partials"));
    const size_t counters = size_t{slices_max} * shape.kv_heads;
    r.finished_ = std::make_unique<std::atomic<uint32_t>[]>(counters);
    r.first_row_.reserve(slices_max);
    return r;
}

AttentionRunner::Scratch AttentionRunner::scratch(uint32_t thread) const {
    const size_t rows = scratch_rows_;
    float* at = scratch_.as<float>() + thread * scratch_floats_;
    const auto take = [&at](size_t n) {
        float* p = at;
        at += n;
        return p;
    };
    Scratch s{};
    s.acc[0] = take(rows * acc_ld_);
    s.acc[1] = take(rows * acc_ld_);
    s.p = take(rows * kTileTokens);
    s.q = take(rows * shape_.head_dim);
    s.q16 = reinterpret_cast<uint16_t*>(take(rows * acc_ld_ / 2));
    s.visible = reinterpret_cast<uint32_t*>(take(rows));
    for (int i = 0; i < 2; ++i) {
        s.m[i] = take(rows);
        s.l[i] = take(rows);
    }
    return s;
}

void AttentionRunner::prepare(const Batch& batch) {
    tasks_.clear();
    partials_used_ = 0;
    first_row_.clear();
    slices_ = batch.slices;
    uint32_t row = 0;
    for (uint32_t i = 0; i < slices_.size(); ++i) {
        first_row_.push_back(row);
        row += slices_[i].tokens;
        cut(i, 0);
    }
}

void AttentionRunner::keep_wanted() {
    tasks_.clear();
    partials_used_ = 0;
    for (uint32_t i = 0; i < slices_.size(); ++i)
        if (slices_[i].logits) cut(i, slices_[i].tokens - 1);
}

/// Adds the tasks of a slice's queries from `first` on. One query alone becomes a task a segment.
void AttentionRunner::cut(uint32_t slice, uint32_t first) {
    const Slice& s = slices_[slice];
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
        const uint32_t counter = slice * shape_.kv_heads + h;
        for (uint32_t q = first; q < s.tokens; q += queries_) {
            const uint32_t end = std::min(s.tokens, q + queries_);
            const uint32_t segments = pages_.unit_of(s.position + end - 1) / kSegmentUnits + 1;
            Task t{slice, h, q, end, 0, segments, kWhole, 1, counter};
            if (first + 1 == s.tokens && segments > 1 &&
                segments <= partials_max_ - partials_used_) {
                t.siblings = segments;
                for (uint32_t seg = 0; seg < segments; ++seg) {
                    t.s0 = seg, t.s1 = seg + 1;
                    t.partial = partials_used_++;
                    tasks_.push_back(t);
                }
            } else {
                tasks_.push_back(t);
            }
        }
    }
}

AttnTile AttentionRunner::tile(const Slice& slice, uint32_t layer, uint32_t head, uint32_t unit0,
                               uint32_t last_position) const {
    AttnTile t{};
    for (uint32_t i = 0; i < kTileUnits; ++i) {
        const uint32_t u = unit0 + i, start = pages_.unit_start(u);
        if (start > last_position) break;
        const BlockId block = slice.blocks[u / pages_.units_per_block()];
        t.k[i] = pages_.unit(layer, false, block, head, u);
        t.v[i] = pages_.unit(layer, true, block, head, u);
        t.capacity[i] = pages_.unit_capacity(u);
        t.start[i] = i == 0 ? 0 : t.start[i - 1] + t.capacity[i - 1];
        t.valid[i] = std::min(t.capacity[i], last_position - start + 1);
        t.units = i + 1;
    }
    return t;
}

/// Takes the rows of a task through one segment. Rows before the segment are left alone.
void AttentionRunner::segment(const Task& task, const Scratch& s, uint32_t layer, uint32_t seg,
                              int into, AttnRows all) const {
    const Slice& slice = slices_[task.slice];
    const uint32_t unit0 = seg * kSegmentUnits;
    const uint32_t queries = task.q1 - task.q0;
    const uint32_t first_position = slice.position + task.q0;
    const uint32_t start = pages_.unit_start(unit0);
    const uint32_t first = start > first_position ? start - first_position : 0;
    std::fill_n(s.m[into], all.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(s.l[into], all.rows, 0.0f);
    std::fill_n(s.acc[into], all.rows * acc_ld_, 0.0f);
    for (uint32_t u = unit0; u < unit0 + kSegmentUnits; u += kTileUnits) {
        const uint32_t tile_start = pages_.unit_start(u);
        if (tile_start > first_position + queries - 1) break;
        const uint32_t q0 =
            std::max(first, tile_start > first_position ? tile_start - first_position : 0);
        const AttnTile t = tile(slice, layer, task.kv_head, u, first_position + queries - 1);
        const uint32_t tokens = t.start[t.units - 1] + t.valid[t.units - 1];
        for (uint32_t q = q0; q < queries; ++q)
            std::fill_n(s.visible + q * group_, group_,
                        std::min(tokens, first_position + q - tile_start + 1));
        AttnRows rows = all;
        const size_t r0 = size_t{q0} * group_;
        rows.rows = (queries - q0) * group_;
        rows.q += r0 * shape_.head_dim;
        rows.q16 += r0 * acc_ld_;
        rows.visible = s.visible + r0;
        rows.m = s.m[into] + r0;
        rows.l = s.l[into] + r0;
        rows.acc = s.acc[into] + r0 * acc_ld_;
        rows.p = s.p;
        kernels_->attend(rows, t);
    }
}

void AttentionRunner::execute(const Task& task, uint32_t thread, uint32_t layer, const float* q,
                              float* out) {
    const Scratch s = scratch(thread);
    const size_t hd = shape_.head_dim, width = size_t{shape_.heads} * hd, piece = group_ * hd;
    const size_t row0 = first_row_[task.slice] + task.q0, head0 = size_t{task.kv_head} * piece;
    const uint32_t queries = task.q1 - task.q0;
    for (uint32_t i = 0; i < queries; ++i) {
        const float* from = q + (row0 + i) * width + head0;
        std::memcpy(s.q + i * piece, from, piece * sizeof(float));
        for (size_t g = 0; g < group_ && !pages_.f32(); ++g) {
            uint16_t* row = s.q16 + (i * group_ + g) * acc_ld_;
            kernels_->bf16_row(from + g * hd, hd, row);
            std::fill(row + hd, row + acc_ld_, uint16_t{0});
        }
    }
    const uint32_t rows = queries * group_;
    AttnRows all{};
    all.rows = rows;
    all.head_dim = shape_.head_dim;
    all.kv_f32 = pages_.f32();
    all.scale = 1.0f / std::sqrt(static_cast<float>(hd));
    all.q = s.q;
    all.q16 = s.q16;
    all.acc_ld = acc_ld_;
    segment(task, s, layer, task.s0, 0, all);
    for (uint32_t seg = task.s0 + 1; seg < task.s1; ++seg) {
        segment(task, s, layer, seg, 1, all);
        const uint32_t start = pages_.unit_start(seg * kSegmentUnits);
        const uint32_t position = slices_[task.slice].position + task.q0;
        const uint32_t first = start > position ? start - position : 0;
        for (uint32_t r = first * group_; r < rows; ++r)
            kernels_->attend_merge(s.m[0] + r, s.l[0] + r, s.acc[0] + r * acc_ld_, s.m[1] + r,
                                   s.l[1] + r, s.acc[1] + r * acc_ld_, acc_ld_);
    }
    if (task.partial == kWhole) {
        for (uint32_t r = 0; r < rows; ++r)
            kernels_->attend_finish(s.acc[0] + r * acc_ld_, s.l[0][r],
                                    out + (row0 + r / group_) * width + head0 + r % group_ * hd, hd,
                                    pages_.f32());
        return;
    }
    float* mine = partial(task.partial);
    std::memcpy(mine, s.m[0], group_ * sizeof(float));
    std::memcpy(mine + group_, s.l[0], group_ * sizeof(float));
    std::memcpy(mine + 2 * size_t{group_}, s.acc[0], group_ * acc_ld_ * sizeof(float));
    if (finished_[task.counter].fetch_add(1, std::memory_order_acq_rel) + 1 == task.siblings) {
        finished_[task.counter].store(0, std::memory_order_relaxed);
        merge_partials(task, out + row0 * width + head0);
    }
}

void AttentionRunner::merge_partials(const Task& task, float* out) const {
    const uint32_t first = task.partial - task.s0;
    float* total = partial(first);
    float* acc = total + 2 * size_t{group_};
    for (uint32_t i = 1; i < task.siblings; ++i) {
        const float* next = partial(first + i);
        for (uint32_t r = 0; r < group_; ++r)
            kernels_->attend_merge(total + r, total + group_ + r, acc + r * acc_ld_, next + r,
                                   next + group_ + r, next + 2 * size_t{group_} + r * acc_ld_,
                                   acc_ld_);
    }
    for (uint32_t r = 0; r < group_; ++r)
        kernels_->attend_finish(acc + r * acc_ld_, total[group_ + r],
                                out + size_t{r} * shape_.head_dim, shape_.head_dim, pages_.f32());
}

}  // namespace baton::backend
