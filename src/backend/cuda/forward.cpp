#include "backend/cuda/forward.hpp"

#include <algorithm>
#include <cmath>

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
        : s_(setup), launch_(launch), shape_(shape), at_(array_offsets(shape)), arrays_(setup.arrays[shape.buffer]) {}

    cudaError_t run() {
        // Nothing before this kernel may be overlapped: its inputs come from another stream.
        BATON_LAUNCH(embed({launch_.stream, false}, s_.elem, s_.weights->embedding, s_.model.hidden, s_.model.vocab, arrays_ + at_.tokens,
                           arrays_ + at_.states, s_.sampler->last(), shape_.rows, s_.hidden));
        for (uint32_t layer = 0; layer < s_.model.layers; ++layer) {
            BATON_LAUNCH(run_layer(s_.weights->layers[layer], s_.kv[layer]));
            BATON_LAUNCH(report(layer + 1));
        }
        return run_head();
    }

  private:
    cudaError_t run_layer(const Weights::Layer& w, const KvView& kv) {
        Matrix qkv = w.qkv;
        if (!shape_.ahead) qkv.ahead = nullptr;
        BATON_LAUNCH(s_.linear->run(of(Part::kQkv), qkv, s_.hidden, shape_.rows, s_.qkv));
        BATON_LAUNCH(run_attention(w, kv));
        BATON_LAUNCH(s_.linear->run(of(Part::kOut), w.out, s_.attention, shape_.rows, s_.hidden));
        BATON_LAUNCH(s_.linear->run(of(Part::kGateUp), w.gate_up, s_.hidden, shape_.rows, s_.act));
        return s_.linear->run(of(Part::kDown), w.down, s_.act, shape_.rows, s_.hidden);
    }

    /// How a part's kernels are launched.
    [[nodiscard]] Launch of(Part part) const {
        return {launch_.stream, launch_.pdl && (shape_.plain & static_cast<uint32_t>(part)) == 0};
    }

    cudaError_t run_attention(const Weights::Layer& w, const KvView& kv) {
        const ModelShape& m = s_.model;
        RopeAppend rope;
        rope.elem = s_.elem;
        rope.qkv = s_.qkv;
        rope.q = s_.q;
        rope.kv = kv;
        rope.rows = shape_.rows;
        rope.heads = m.heads;
        rope.q_norm = w.q_norm;
        rope.k_norm = w.k_norm;
        rope.eps = w.qk_eps;
        rope.rope = s_.rope;
        rope.positions = arrays_ + at_.positions;
        rope.slots = arrays_ + at_.slots;
        const bool fused = shape_.decode == shape_.rows && decode_fuses(m.heads, m.kv_heads, m.head_dim, shape_.decode);
        if (!fused) BATON_LAUNCH(rope_append(of(Part::kAttention), rope));

        AttentionArgs args;
        args.elem = s_.elem;
        args.kv = kv;
        args.heads = m.heads;
        args.scale = 1.0f / std::sqrt(static_cast<float>(m.head_dim));
        args.blocks_stride = s_.table_stride;
        if (shape_.decode > 0) {
            DecodeAttention decode;
            decode.base = args;
            decode.base.sequences = shape_.decode;
            decode.base.kv_len = arrays_ + at_.kv_len;
            decode.base.blocks = s_.table[shape_.buffer];
            decode.base.out = s_.attention;
            decode.q = s_.q;
            decode.fused = fused ? &rope : nullptr;
            // The pass begins behind all earlier ones, and a sequence's past is written by none of this.
            decode.early = fused;
            decode.workspace = s_.decode_workspace;
            decode.splits = shape_.splits;
            BATON_LAUNCH(decode_attention(of(Part::kAttention), decode));
        }
        if (shape_.prefill > 0) {
            PrefillAttention prefill;
            prefill.base = args;
            prefill.base.sequences = shape_.prefill;
            prefill.base.kv_len = arrays_ + at_.kv_len + shape_.decode;
            prefill.base.blocks = s_.table[shape_.buffer] + size_t{shape_.decode} * s_.table_stride;
            prefill.base.out = row(s_.attention, shape_.decode);
            prefill.q = row(s_.q, shape_.decode);
            prefill.row_begin = arrays_ + at_.row_begin;
            prefill.rows = shape_.rows - shape_.decode;
            prefill.rows_max = shape_.prefill_rows_max;
            BATON_LAUNCH(prefill_attention(of(Part::kAttention), prefill));
        }
        return cudaSuccess;
    }

    /// Row `n` of a buffer [rows, heads, head_dim].
    [[nodiscard]] void* row(void* buffer, uint32_t n) const {
        return static_cast<std::byte*>(buffer) + size_t{n} * s_.model.heads * s_.model.head_dim * 2;
    }

    /// Tells the watchers how many layers are done, every few layers and at the end.
    cudaError_t report(uint32_t layers) {
        if (shape_.words == 0 || (layers % std::max(1u, s_.model.layers / kProgressParts) != 0 && layers != s_.model.layers))
            return cudaSuccess;
        return publish_progress(launch_.stream, reinterpret_cast<const ProgressWord*>(arrays_ + at_.words), shape_.words, layers);
    }

    cudaError_t run_head() {
        if (shape_.logits == 0) return cudaSuccess;
        const void* x = s_.hidden;
        if (shape_.gather) {
            BATON_LAUNCH(gather_rows(launch_, s_.elem, s_.hidden, arrays_ + at_.logit_rows, shape_.logits, s_.model.hidden, s_.last));
            x = s_.last;
        }
        BATON_LAUNCH(s_.head_linear->run(of(Part::kHead), s_.weights->head, x, shape_.logits, s_.logits));
        if (s_.kept != nullptr)
            BATON_LAUNCH(cudaMemcpyAsync(s_.kept, s_.logits, size_t{shape_.logits} * s_.model.vocab * sizeof(float),
                                         cudaMemcpyDeviceToDevice, launch_.stream));
        return s_.sampler->run({launch_.stream, of(Part::kSample).pdl && s_.kept == nullptr}, shape_.buffer, s_.logits, shape_.logits);
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
