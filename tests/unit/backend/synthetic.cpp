#include "synthetic.hpp"

#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu_backend.hpp"

namespace baton::backend::test {

namespace {

using tensor::DType;

/// Makes the f16 fields of random block bytes sensible: scales of about `magnitude` over the
/// quants' range.
void set_scales(Rng& rng, DType type, std::byte* block, float magnitude) {
    const auto put = [&](size_t at, float v) {
        const uint16_t h = tensor::f32_to_f16(v);
        std::memcpy(block + at, &h, 2);
    };
    const float s = magnitude * (0.6f + 0.4f * rng.symmetric());
    switch (type) {
        case DType::kQ8_0:
            put(0, s / 128);
            break;
        case DType::kQ4_0:
            put(0, s / 8);
            break;
        case DType::kQ4_1:
            put(0, s / 8), put(2, -s * 0.9f);
            break;
        case DType::kQ5_0:
            put(0, -s / 16);
            break;
        case DType::kQ5_1:
            put(0, s / 16), put(2, -s * 1.1f);
            break;
        case DType::kQ4_K:
            put(0, s / 8 / 40), put(2, s / 40);
            break;
        case DType::kQ5_K:
            put(0, s / 16 / 40), put(2, s / 40);
            break;
        case DType::kQ6_K:
            put(208, s / 32 / 100);
            break;
        default:
            break;
    }
}

struct Reference {
    const Plan& plan;
    std::array<std::vector<std::vector<double>>, static_cast<size_t>(Slot::kCount)> slot;
    std::vector<std::vector<double>> keys,
        values;  ///< [token][kv_heads · head_dim] of the layer at hand

    std::vector<double>& at(Slot s, size_t t) { return slot[static_cast<size_t>(s)][t]; }
    size_t tokens() const { return slot[0].size(); }

    void operator()(const RmsNorm& s) {
        const auto w = dequantize(s.weight);
        for (size_t t = 0; t < tokens(); ++t) {
            auto x = at(s.in, t);
            const size_t n = x.size() / s.groups;
            for (size_t g = 0; g < s.groups; ++g) {
                double sum = 0;
                for (size_t i = 0; i < n; ++i) sum += x[g * n + i] * x[g * n + i];
                const double r = 1.0 / std::sqrt(sum / static_cast<double>(n) + s.eps);
                for (size_t i = 0; i < n; ++i) x[g * n + i] *= r * w[i];
            }
            at(s.out, t) = x;
        }
    }
    void operator()(const MatMul& s) {
        const auto w = dequantize(s.weight);
        const auto b = s.bias ? dequantize(s.bias) : std::vector<float>(s.weight.shape[0], 0.0f);
        const size_t k = s.weight.shape[1];
        for (size_t t = 0; t < tokens(); ++t) {
            const auto x = at(s.in, t);
            auto& y = at(s.out, t);
            y.resize(s.weight.shape[0], 0.0);
            for (size_t n = 0; n < y.size(); ++n) {
                double sum = b[n];
                for (size_t i = 0; i < k; ++i) sum += x[i] * w[n * k + i];
                y[n] = s.add ? y[n] + sum : sum;
            }
        }
    }
    void operator()(const ApplyRope&) {
        const size_t hd = plan.shape.head_dim, half = hd / 2;
        for (size_t t = 0; t < tokens(); ++t) {
            for (auto* x : {&at(Slot::kQ, t), &at(Slot::kK, t)}) {
                for (size_t h = 0; h < x->size() / hd; ++h) {
                    for (size_t i = 0; i < half; ++i) {
                        const double a = static_cast<double>(t) * plan.rope.inv_freq[i];
                        const double c = std::cos(a) * plan.rope.scale,
                                     n = std::sin(a) * plan.rope.scale;
                        double& p = (*x)[h * hd + i];
                        double& q = (*x)[h * hd + half + i];
                        const double p0 = p;
                        p = p0 * c - q * n;
                        q = q * c + p0 * n;
                    }
                }
            }
        }
    }
    void operator()(const KvAppend&) {
        keys = slot[static_cast<size_t>(Slot::kK)];
        values = slot[static_cast<size_t>(Slot::kV)];
    }
    void operator()(const Attention&) {
        const ModelShape& m = plan.shape;
        const size_t hd = m.head_dim, group = m.heads / m.kv_heads;
        for (size_t t = 0; t < tokens(); ++t) {
            auto& out = at(Slot::kAttn, t);
            out.assign(m.heads * hd, 0.0);
            for (size_t h = 0; h < m.heads; ++h) {
                const size_t kv = h / group * hd;
                std::vector<double> p(t + 1);
                double top = -1e300, sum = 0;
                for (size_t j = 0; j <= t; ++j) {
                    double dot = 0;
                    for (size_t d = 0; d < hd; ++d)
                        dot += at(Slot::kQ, t)[h * hd + d] * keys[j][kv + d];
                    p[j] = dot / std::sqrt(static_cast<double>(hd));
                    top = std::max(top, p[j]);
                }
                for (double& x : p) sum += x = std::exp(x - top);
                for (size_t j = 0; j <= t; ++j)
                    for (size_t d = 0; d < hd; ++d)
                        out[h * hd + d] += p[j] / sum * values[j][kv + d];
            }
        }
    }
    void operator()(const SwiGlu&) {
        for (size_t t = 0; t < tokens(); ++t) {
            auto& out = at(Slot::kAct, t);
            out = at(Slot::kUp, t);
            for (size_t i = 0; i < out.size(); ++i) {
                const double g = at(Slot::kGate, t)[i];
                out[i] *= g / (1.0 + std::exp(-g));
            }
        }
    }
};

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> out;
    for (const char* isa : {"portable", "avx2", "avx512", "avx512bf16", "amx"})
        if (choose_kernels(isa)) out.emplace_back(isa);
    return out;
}

tensor::TensorView TensorStore::random(Rng& rng, DType type, size_t rows, size_t cols,
                                       float magnitude) {
    const tensor::BlockShape b = tensor::block_shape(type);
    auto& bytes = bytes_.emplace_back(rows * cols / b.elements * b.bytes);
    for (size_t at = 0; at < bytes.size(); at += b.bytes) {
        std::byte* p = bytes.data() + at;
        const float v = magnitude * rng.symmetric();
        if (type == DType::kF32) {
            std::memcpy(p, &v, 4);
        } else if (type == DType::kF16 || type == DType::kBF16) {
            const uint16_t h = type == DType::kF16 ? tensor::f32_to_f16(v) : tensor::f32_to_bf16(v);
            std::memcpy(p, &h, 2);
        } else {
            for (size_t i = 0; i < b.bytes; ++i) p[i] = static_cast<std::byte>(rng.next());
            set_scales(rng, type, p, magnitude);
        }
    }
    return {"random", type, {rows, cols}, bytes};
}

tensor::TensorView TensorStore::around_one(Rng& rng, size_t n) {
    auto& bytes = bytes_.emplace_back(n * 4);
    for (size_t i = 0; i < n; ++i) {
        const float v = 1.0f + 0.3f * rng.symmetric();
        std::memcpy(bytes.data() + 4 * i, &v, 4);
    }
    return {"norm", DType::kF32, {1, n}, bytes};
}

std::vector<float> dequantize(const tensor::TensorView& t) {
    std::vector<float> out(t.shape[0] * t.shape[1]);
    for (size_t r = 0; r < t.shape[0]; ++r)
        tensor::dequantize_row(t.dtype, t.row(r), out.data() + r * t.shape[1], t.shape[1]);
    return out;
}

ModelShape wide_shape() {
    return {2, 256, 4, 2, 64, 512, 72, 2048};
}

Plan make_plan(const ModelOptions& o) {
    auto store = std::make_shared<TensorStore>();
    Rng rng(o.seed);
    Plan plan;
    plan.shape = o.shape;
    const ModelShape& s = o.shape;
    for (uint32_t i = 0; i < s.head_dim / 2; ++i)
        plan.rope.inv_freq.push_back(static_cast<float>(
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim))));
    const auto matrix = [&](size_t rows, size_t cols) {
        return store->random(rng, o.type, rows, cols, 1.7f / std::sqrt(static_cast<float>(cols)));
    };
    const auto bias = [&](size_t n) {
        return o.bias ? store->random(rng, DType::kF32, 1, n, 0.3f) : tensor::TensorView{};
    };
    plan.embedding = store->random(rng, o.type, s.vocab, s.hidden, 1.0f);
    const size_t q = size_t{s.heads} * s.head_dim, kv = size_t{s.kv_heads} * s.head_dim;
    for (uint32_t l = 0; l < s.layers; ++l) {
        std::vector<Step> layer;
        layer.emplace_back(
            RmsNorm{Slot::kHidden, Slot::kNorm, store->around_one(rng, s.hidden), 1e-5f});
        layer.emplace_back(MatMul{Slot::kNorm, Slot::kQ, matrix(q, s.hidden), bias(q)});
        layer.emplace_back(MatMul{Slot::kNorm, Slot::kK, matrix(kv, s.hidden), bias(kv)});
        layer.emplace_back(MatMul{Slot::kNorm, Slot::kV, matrix(kv, s.hidden), bias(kv)});
        if (o.qk_norm) {
            layer.emplace_back(
                RmsNorm{Slot::kQ, Slot::kQ, store->around_one(rng, s.head_dim), 1e-6f, s.heads});
            layer.emplace_back(
                RmsNorm{Slot::kK, Slot::kK, store->around_one(rng, s.head_dim), 1e-6f, s.kv_heads});
        }
        layer.emplace_back(ApplyRope{});
        layer.emplace_back(KvAppend{});
        layer.emplace_back(Attention{});
        layer.emplace_back(MatMul{Slot::kAttn, Slot::kHidden, matrix(s.hidden, q), {}, true});
        layer.emplace_back(
            RmsNorm{Slot::kHidden, Slot::kNorm, store->around_one(rng, s.hidden), 1e-5f});
        layer.emplace_back(MatMul{Slot::kNorm, Slot::kGate, matrix(s.ffn, s.hidden), {}});
        layer.emplace_back(MatMul{Slot::kNorm, Slot::kUp, matrix(s.ffn, s.hidden), {}});
        layer.emplace_back(SwiGlu{});
        layer.emplace_back(MatMul{Slot::kAct, Slot::kHidden, matrix(s.hidden, s.ffn), {}, true});
        plan.layers.push_back(std::move(layer));
    }
    plan.final_norm = {Slot::kHidden, Slot::kNorm, store->around_one(rng, s.hidden), 1e-5f};
    plan.head = plan.embedding;
    plan.storage = store;
    return plan;
}

std::vector<double> reference_logits(const Plan& plan, const std::vector<int32_t>& tokens) {
    Reference r{plan, {}, {}, {}};
    for (auto& s : r.slot) s.resize(tokens.size());
    const auto embedding = dequantize(plan.embedding);
    const size_t hidden = plan.shape.hidden;
    for (size_t t = 0; t < tokens.size(); ++t) {
        const float* row = embedding.data() + static_cast<size_t>(tokens[t]) * hidden;
        r.at(Slot::kHidden, t).assign(row, row + hidden);
    }
    for (const auto& layer : plan.layers)
        for (const Step& step : layer) std::visit(r, step);
    r(plan.final_norm);
    const auto head = dequantize(plan.head);
    const auto& x = r.at(Slot::kNorm, tokens.size() - 1);
    std::vector<double> logits(plan.shape.vocab, 0.0);
    for (size_t n = 0; n < logits.size(); ++n)
        for (size_t i = 0; i < hidden; ++i) logits[n] += x[i] * head[n * hidden + i];
    return logits;
}

}  // namespace baton::backend::test
