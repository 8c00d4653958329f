#include "backend/cuda/forward.hpp"

#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_out.hpp"

/// Returns the failure of a launch to the caller.
#define BATON_LAUNCH(expr)                                                                     \
    do {                                                                                       \
        if (const cudaError_t baton_launch_r = (expr); baton_launch_r != cudaSuccess) return baton_launch_r; \
    } while (false)

namespace baton::backend::cuda {

namespace {

constexpr uint32_t kProgressParts = 8;  // times a step says how far it is

/// The pass of one step: what all its kernels share.
class Pass {
  public:
    Pass(const PassSetup& setup, const Launch& launch, const StepShape& shape)
        : s_(setup), launch_(launch), shape_(shape), at_(array_offsets(shape)), arrays_(setup.begin.arrays) {}

    cudaError_t run() {
        StepBegin begin = s_.begin;
        begin.values = at_.total;
        begin.samples = shape_.logits;
        begin.rows = shape_.rows;
        begin.tokens_at = at_.tokens;
        begin.states_at = at_.states;
        begin.may_follow = shape_.one_each();
        begin.positions_at = at_.positions;
        begin.slots_at = at_.slots;
        begin.lengths_at = at_.kv_len;
        begin.blocks = shape_.prefill > 0 ? s_.prefill_table : s_.decode_table;
        BATON_LAUNCH(begin_step(launch_.stream, begin));
        if (planned()) {  // from the lengths that the kernel ahead brought
            const RopeAppend rope = rope_of(0);
            BATON_LAUNCH(decode_plan(launch_, decode_of(0, &rope)));
        }
        for (uint32_t layer = 0; layer < s_.model.layers; ++layer) BATON_LAUNCH(run_layer(layer, layer + 1 == s_.model.layers && cut()));
        return run_head();
    }

  private:
    /// With `last_rows` what follows the layer's keys and values is computed of the rows whose logits are wanted alone: nobody reads
    /// the others. They are left in PassSetup::last.
    cudaError_t run_layer(uint32_t layer, bool last_rows) {
        const Weights::Layer& w = s_.weights->layers[layer];
        Matrix qkv = w.qkv;
        if (!shape_.ahead) qkv.ahead = nullptr;
        // Kernels read the input before they wait for the one ahead: none may start before the first has ended.
        const Launch launch = layer == 0 ? Launch{launch_.stream, false} : of(Part::kQkv);
        if (shape_.joined) {
            BATON_LAUNCH(qkv_attention(launch, joined_of(layer)));
            BATON_LAUNCH(run_joined_rest(layer));
            return report(layer + 1);
        }
        BATON_LAUNCH(s_.linear->run(launch, qkv, s_.hidden, shape_.rows, s_.qkv));
        if (!fused()) {
            BATON_LAUNCH(rope_append(of(Part::kAttention), rope_of(layer)));
            if (last_rows && shape_.logits == 0) return report(layer + 1);
        }
        BATON_LAUNCH(run_attention(layer, last_rows));
        if (!last_rows) {
            BATON_LAUNCH(run_rest(w, s_.attention, shape_.rows, s_.hidden));
            return report(layer + 1);
        }
        BATON_LAUNCH(report(layer + 1));
        if (shape_.logits == 0) return cudaSuccess;
        BATON_LAUNCH(gather(s_.attention, s_.model.heads * s_.model.head_dim, s_.q));
        BATON_LAUNCH(gather(s_.hidden, s_.model.hidden, s_.last));
        return run_rest(w, s_.q, shape_.logits, s_.last);
    }

    /// A layer's part behind attention: `x`, its result, goes into the residual stream `hidden`, and then what the feed-forward part makes of that.
    cudaError_t run_rest(const Weights::Layer& w, const void* x, uint32_t rows, void* hidden) {
        BATON_LAUNCH(s_.linear->run(of(Part::kOut), w.out, x, rows, hidden));
        return run_mlp(w, {hidden}, rows, {hidden});
    }
    /// The same behind QkvAttention.
    cudaError_t run_joined_rest(uint32_t layer) {
        const Weights::Layer& w = s_.weights->layers[layer];
        const Rows between = shape_.mlp != 0 ? for_lanes() : Rows{s_.hidden};
        BATON_LAUNCH(attention_out(of(Part::kOut), {s_.elem, w.out, s_.attention, stream(layer), between}));
        return run_mlp(w, between, shape_.rows, stream(layer + 1));
    }
    /// A layer's feed-forward part of `x`, and `x`, to `to`; without a kernel of its own they are one.
    cudaError_t run_mlp(const Weights::Layer& w, Rows x, uint32_t rows, Rows to) {
        if (shape_.mlp != 0) return mlp(of(Part::kGateUp), {s_.elem, w.gate_up, w.down, x, to, rows, s_.mlp_slots}, static_cast<uint8_t>(shape_.mlp - 1));
        BATON_LAUNCH(s_.linear->run(of(Part::kGateUp), w.gate_up, x.data, rows, s_.act));
        return s_.linear->run(of(Part::kDown), w.down, s_.act, rows, to.data);
    }
    /// Room for the residual stream of 16 rows in lanes' order: QkvAttention leaves no rows of qkv.
    [[nodiscard]] Rows for_lanes() const { return {s_.qkv, true}; }
    /// Where a joined step's residual stream lies as a layer begins, or behind the last.
    [[nodiscard]] Rows stream(uint32_t layer) const {
        return shape_.mlp != 0 && layer > 0 && layer < s_.model.layers ? for_lanes() : Rows{s_.hidden};
    }

    /// Whether rows are computed that no logits come from.
    [[nodiscard]] bool cut() const { return shape_.gather || shape_.logits == 0; }
    /// The rows whose logits are wanted, of [rows, width].
    cudaError_t gather(const void* x, uint32_t width, void* out) {
        return gather_rows(launch_, s_.elem, x, arrays_ + at_.logit_rows, shape_.logits, width, out);
    }

    /// How a part's kernels are launched.
    [[nodiscard]] Launch of(Part part) const {
        return {launch_.stream, launch_.pdl && (shape_.plain & static_cast<uint32_t>(part)) == 0};
    }

    /// Whether decode attention norms, rotates and appends the new rows itself.
    [[nodiscard]] bool fused() const {
        return shape_.decode_only() && decode_fuses(s_.model.heads, s_.model.kv_heads, s_.model.head_dim, shape_.decode);
    }
    /// Whether its shares are worked out once for all layers.
    [[nodiscard]] bool planned() const { return fused() && !shape_.joined; }

    [[nodiscard]] RopeAppend rope_of(uint32_t layer) const {
        const Weights::Layer& w = s_.weights->layers[layer];
        RopeAppend rope;
        rope.elem = s_.elem;
        rope.qkv = s_.qkv;
        rope.q = s_.q;
        rope.kv = s_.kv[layer];
        rope.rows = shape_.rows;
        rope.heads = s_.model.heads;
        rope.q_norm = w.q_norm;
        rope.k_norm = w.k_norm;
        rope.eps = w.qk_eps;
        rope.rope = s_.rope;
        rope.positions = arrays_ + at_.positions;
        rope.slots = arrays_ + at_.slots;
        return rope;
    }
    [[nodiscard]] AttentionArgs attention_of(uint32_t layer) const {
        AttentionArgs args;
        args.elem = s_.elem;
        args.kv = s_.kv[layer];
        args.heads = s_.model.heads;
        args.scale = 1.0f / std::sqrt(static_cast<float>(s_.model.head_dim));
        args.blocks_stride = s_.table_stride;
        args.out = s_.attention;
        return args;
    }
    [[nodiscard]] DecodeAttention decode_of(uint32_t layer, const RopeAppend* fused_rope) const {
        DecodeAttention decode;
        decode.base = attention_of(layer);
        decode.base.sequences = shape_.decode;
        decode.base.kv_len = arrays_ + at_.kv_len;
        decode.base.blocks = s_.decode_table;
        decode.q = s_.q;
        decode.fused = fused_rope;
        // The pass begins behind all earlier ones, and a sequence's past is written by none of this.
        decode.early = fused_rope != nullptr;
        decode.planned = planned();
        decode.workspace = s_.decode_workspace;
        decode.splits = shape_.splits;
        return decode;
    }

    [[nodiscard]] QkvAttention joined_of(uint32_t layer) const {
        QkvAttention joined;
        joined.qkv = s_.weights->layers[layer].qkv;
        joined.x = stream(layer);
        joined.rope = rope_of(layer);
        joined.attention = decode_of(layer, nullptr).base;
        joined.splits = shape_.splits;
        joined.slots = s_.qkv_slots;
        return joined;
    }

    cudaError_t run_attention(uint32_t layer, bool last_rows) {
        const RopeAppend rope = rope_of(layer);
        if (shape_.decode > 0) BATON_LAUNCH(decode_attention(of(Part::kAttention), decode_of(layer, fused() ? &rope : nullptr)));
        if (shape_.prefill > 0) {
            PrefillAttention prefill;
            prefill.base = attention_of(layer);
            prefill.base.sequences = shape_.prefill;
            prefill.base.kv_len = arrays_ + at_.kv_len + shape_.decode;
            prefill.base.blocks = s_.prefill_table;
            prefill.q = s_.q;
            prefill.row_begin = arrays_ + at_.row_begin;
            prefill.rows = last_rows ? shape_.prefill : shape_.rows;
            prefill.rows_max = last_rows ? 1 : shape_.prefill_rows_max;
            prefill.last_only = last_rows;
            BATON_LAUNCH(prefill_attention(of(Part::kAttention), prefill));
        }
        return cudaSuccess;
    }

    /// Tells the watchers how many layers are done, every few layers and at the end.
    cudaError_t report(uint32_t layers) {
        if (shape_.words == 0 || (layers % std::max(1u, s_.model.layers / kProgressParts) != 0 && layers != s_.model.layers))
            return cudaSuccess;
        return publish_progress(launch_.stream, reinterpret_cast<const ProgressWord*>(arrays_ + at_.words), shape_.words, layers);
    }

    cudaError_t run_head() {
        if (shape_.logits == 0) return s_.sampler->run({launch_.stream, false}, s_.logits, 0, s_.counter);
        const void* x = cut() ? s_.last : s_.hidden;
        BATON_LAUNCH(s_.head_linear->run(of(Part::kHead), s_.weights->head, x, shape_.logits, s_.logits));
        if (s_.kept != nullptr)
            BATON_LAUNCH(cudaMemcpyAsync(s_.kept, s_.logits, size_t{shape_.logits} * s_.model.vocab * sizeof(float),
                                         cudaMemcpyDeviceToDevice, launch_.stream));
        const Launch sample{launch_.stream, of(Part::kSample).pdl && s_.kept == nullptr};
        if (shape_.masked) BATON_LAUNCH(s_.sampler->wait_for_masks(sample, s_.logits, shape_.logits));
        return s_.sampler->run(sample, s_.logits, shape_.logits, s_.counter,
                               shape_.whole);
    }

    const PassSetup& s_;
    const Launch launch_;
    const StepShape& shape_;
    const ArrayOffsets at_;
    const int32_t* arrays_;
};

}  // namespace

ArrayOffsets array_offsets(const StepShape& shape) {
    ArrayOffsets at;
    const auto take = [&](uint32_t& offset, uint32_t n) {
        offset = at.total;
        at.total += (n + 3) / 4 * 4;  // 16-byte alignment for all
    };
    take(at.tokens, shape.rows);
    take(at.positions, shape.rows);
    take(at.slots, shape.rows);
    take(at.states, shape.rows);
    take(at.kv_len, shape.sequences());
    take(at.row_begin, shape.prefill > 0 ? shape.prefill + 1 : 0);
    take(at.logit_rows, shape.gather ? shape.logits : 0);
    take(at.words, shape.words * static_cast<uint32_t>(sizeof(ProgressWord) / sizeof(int32_t)));
    return at;
}

cudaError_t run_pass(const PassSetup& setup, const Launch& launch, const StepShape& shape) {
    return Pass(setup, launch, shape).run();
}

}  // namespace baton::backend::cuda
