#include "baton/sched/sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sched/softmax.hpp"

namespace baton::sched {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr float kLogprobMin = -9999.0f;   // what clients of the OpenAI API expect instead of -inf
constexpr float kTemperatureMin = 1e-5f;  // greedy below
constexpr size_t kFirstCandidates = 256;

using Candidate = std::pair<float, TokenId>;

/// Larger logit first, of equals the lower id.
bool before(const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

/// One word as two 32-bit halves of a product.
std::pair<uint32_t, uint32_t> multiply(uint32_t a, uint32_t b) {
    const uint64_t p = static_cast<uint64_t>(a) * b;
    return {static_cast<uint32_t>(p >> 32), static_cast<uint32_t>(p)};
}

bool in_vocab(TokenId t, size_t vocab) {
    return t >= 0 && static_cast<size_t>(t) < vocab;
}

/// Repetition penalty as in HF and vLLM over prompt and emitted ids, each id once; frequency and
/// presence over emitted.
void apply_penalties(std::vector<float>& logits, const wire::Sequence& sequence,
                     std::vector<uint32_t>& counts) {
    const wire::Sampling& s = sequence.sampling;
    const size_t vocab = logits.size();
    counts.resize(vocab, 0);  // all zero between calls
    if (s.repetition_penalty != 1.0f) {
        const auto penalise = [&](TokenId t) {
            if (!in_vocab(t, vocab) || counts[static_cast<size_t>(t)] != 0) return;
            counts[static_cast<size_t>(t)] = 1;
            float& l = logits[static_cast<size_t>(t)];
            l = l > 0.0f ? l / s.repetition_penalty : l * s.repetition_penalty;
        };
        for (const TokenId t : sequence.prompt) penalise(t);
        for (const TokenId t : sequence.emitted) penalise(t);
        for (const TokenId t : sequence.prompt)
            if (in_vocab(t, vocab)) counts[static_cast<size_t>(t)] = 0;
        for (const TokenId t : sequence.emitted)
            if (in_vocab(t, vocab)) counts[static_cast<size_t>(t)] = 0;
    }
    if (s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f) return;
    for (const TokenId t : sequence.emitted)
        if (in_vocab(t, vocab)) ++counts[static_cast<size_t>(t)];
    for (const TokenId t : sequence.emitted) {
        if (!in_vocab(t, vocab)) continue;
        uint32_t& n = counts[static_cast<size_t>(t)];
        if (n == 0) continue;
        logits[static_cast<size_t>(t)] -=
            s.frequency_penalty * static_cast<float>(n) + s.presence_penalty;
        n = 0;
    }
}

/// Copies the raw logits (NaN counts as minus infinity) and applies bias, penalties and the stop
/// mask.
void adjust(std::span<const float> raw, const wire::Sequence& sequence, SamplerScratch& scratch) {
    const wire::Sampling& s = sequence.sampling;
    std::vector<float>& logits = scratch.logits;
    logits.resize(raw.size());
    for (size_t i = 0; i < raw.size(); ++i) logits[i] = std::isnan(raw[i]) ? kMinusInf : raw[i];
    for (const auto& [id, bias] : s.logit_bias)
        if (in_vocab(id, logits.size())) logits[static_cast<size_t>(id)] += bias;
    if (s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f)
        apply_penalties(logits, sequence, scratch.counts);
    if (sequence.emitted.size() < s.min_tokens) {
        for (const TokenId id : s.stop_ids)
            if (in_vocab(id, logits.size())) logits[static_cast<size_t>(id)] = kMinusInf;
    }
}

/// For each four bits the largest value that four logits may keep.
constexpr auto kCaps = [] {
    std::array<std::array<float, 4>, 16> caps{};
    for (size_t bits = 0; bits < 16; ++bits)
        for (size_t i = 0; i < 4; ++i) caps[bits][i] = (bits >> i & 1) != 0 ? -kMinusInf : kMinusInf;
    return caps;
}();

/// Takes away all tokens whose bit is not set. Where nothing would be left to choose from, the first allowed one is chosen.
/// Written so that four go at a time.
void apply_mask(std::span<const uint32_t> mask, std::vector<float>& logits) {
    const size_t vocab = logits.size(), fours = std::min(mask.size() * 8, vocab / 4);
    std::array<float, 4> best{kMinusInf, kMinusInf, kMinusInf, kMinusInf};
    for (size_t q = 0; q < fours; ++q) {
        const std::array<float, 4>& caps = kCaps[mask[q / 8] >> (q % 8 * 4) & 15];
        float* l = logits.data() + q * 4;
        for (size_t i = 0; i < 4; ++i) l[i] = caps[i] < l[i] ? caps[i] : l[i];
        for (size_t i = 0; i < 4; ++i) best[i] = best[i] < l[i] ? l[i] : best[i];
    }
    const auto allowed = [&](size_t i) { return i / 32 < mask.size() && (mask[i / 32] >> (i % 32) & 1) != 0; };
    for (size_t i = fours * 4; i < vocab; ++i) {
        if (!allowed(i)) logits[i] = kMinusInf;
        best[0] = std::max(best[0], logits[i]);
    }
    if (std::ranges::any_of(best, [](float b) { return b > kMinusInf; })) return;
    for (size_t i = 0; i < vocab; ++i) {
        if (!allowed(i)) continue;
        logits[i] = 0.0f;
        return;
    }
}

/// Collects the candidates whose logit is at least `bar`, lowest id first.
void gather(std::span<const float> logits, float bar, std::vector<Candidate>& order) {
    order.clear();
    for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] >= bar) order.emplace_back(logits[i], static_cast<TokenId>(i));
}

/// Brings the `n` largest of `order` to its front, sorted.
void sort_front(std::vector<Candidate>& order, size_t n) {
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(n);
    if (n < order.size()) std::nth_element(order.begin(), middle, order.end(), before);
    std::sort(order.begin(), middle, before);
}

/// The `n` largest logits, sorted. Looks first at those within a few widths of the largest, which
/// mostly are enough.
void take_largest(std::span<const float> logits, float max, float width, size_t n,
                  std::vector<Candidate>& order) {
    n = std::min(n, logits.size());
    for (const float reach : {4.0f, 12.0f, std::numeric_limits<float>::infinity()}) {
        const float bar = std::isinf(reach) ? kMinusInf : max - reach * width;
        gather(logits, bar, order);
        if (order.size() >= n) break;
    }
    sort_front(order, n);
    order.resize(n);
}

/// Keeps the largest candidates that hold `want` of the weight; sorts as many as needed.
void cut_to_mass(std::vector<Candidate>& order, double want, std::span<const float> weights) {
    for (size_t n = std::min(kFirstCandidates, order.size());; n = std::min(n * 8, order.size())) {
        sort_front(order, n);
        double sum = 0;
        for (size_t i = 0; i < n; ++i) {
            sum += static_cast<double>(weights[static_cast<size_t>(order[i].second)]);
            if (sum < want) continue;
            order.resize(i + 1);
            return;
        }
        if (n == order.size()) return;
    }
}

/// The candidates of the whole vocabulary that hold `want` of the weight, sorted.
void take_mass(std::span<const float> logits, float max, float width, double want,
               SamplerScratch& scratch) {
    for (const float reach : {4.0f, 12.0f, std::numeric_limits<float>::infinity()}) {
        const float bar = std::isinf(reach) ? kMinusInf : max - reach * width;
        gather(logits, bar, scratch.order);
        double mass = 0;
        for (const auto& [l, id] : scratch.order)
            mass += static_cast<double>(scratch.weights[static_cast<size_t>(id)]);
        if (mass >= want) break;
    }
    cut_to_mass(scratch.order, want, scratch.weights);
}

/// Draws after top-k, then top-p of what is left, then min-p; walks from the most likely down.
TokenId draw_ordered(SamplerScratch& scratch, float max, const wire::Sampling& s, bool top_k,
                     double u) {
    std::vector<Candidate>& order = scratch.order;
    const double all = softmax_weights(scratch.logits, max, s.temperature, 0.0f, scratch.weights,
                                       scratch.block_sums);
    const auto weight = [&](const Candidate& c) {
        return static_cast<double>(scratch.weights[static_cast<size_t>(c.second)]);
    };
    const double top_p = static_cast<double>(s.top_p);
    if (top_k) {
        take_largest(scratch.logits, max, s.temperature, static_cast<size_t>(s.top_k), order);
        double kept = 0;
        for (const Candidate& c : order) kept += weight(c);
        if (s.top_p < 1.0f) cut_to_mass(order, top_p * kept, scratch.weights);
    } else {
        take_mass(scratch.logits, max, s.temperature, top_p * all, scratch);
    }
    double total = 0;
    size_t n = 0;
    for (; n < order.size(); ++n) {
        const double w = weight(order[n]);
        if (n > 0 && (w < static_cast<double>(s.min_p) || w <= 0)) break;
        total += w;
    }
    double left = u * total;
    for (size_t i = 0; i < n; ++i) {
        if (left < weight(order[i])) return order[i].second;
        left -= weight(order[i]);
    }
    return order[n - 1].second;  // rounding left a crumb
}

TokenId pick(const wire::Sequence& sequence, SamplerScratch& scratch) {
    const wire::Sampling& s = sequence.sampling;
    const float max = max_of(scratch.logits);
    // An infinite maximum has no distribution to draw from.
    if (!(s.temperature >= kTemperatureMin) || !std::isfinite(max))
        return static_cast<TokenId>(std::ranges::find(scratch.logits, max) -
                                    scratch.logits.begin());
    const double u = uniform(s.seed, sequence.prompt.size() + sequence.emitted.size());
    const bool top_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < scratch.logits.size();
    if (top_k || s.top_p < 1.0f) return draw_ordered(scratch, max, s, top_k, u);
    const double total = softmax_weights(scratch.logits, max, s.temperature, s.min_p,
                                         scratch.weights, scratch.block_sums);
    return static_cast<TokenId>(find_mass(scratch.weights, scratch.block_sums, u * total));
}

/// Log softmax of the raw logits: the sampled id's, and the `top_logprobs` largest.
void add_logprobs(std::span<const float> raw, int32_t top, SamplerScratch& scratch,
                  wire::Token& token) {
    std::vector<float>& logits = scratch.logits;
    for (size_t i = 0; i < raw.size(); ++i) logits[i] = std::isnan(raw[i]) ? kMinusInf : raw[i];
    const float max = max_of(logits);
    const bool finite = std::isfinite(max);
    const double log_total =
        finite ? static_cast<double>(max) +
                     std::log(softmax_weights(logits, max, 1.0f, 0.0f, scratch.weights,
                                              scratch.block_sums))
               : 0.0;
    const auto logprob = [&](float l) {
        if (!finite) return l == max && max > 0 ? 0.0f : kLogprobMin;
        return std::max(static_cast<float>(static_cast<double>(l) - log_total), kLogprobMin);
    };
    token.logprob = logprob(logits[static_cast<size_t>(token.id)]);
    if (top == 0) return;
    take_largest(logits, max, 1.0f, static_cast<size_t>(top), scratch.order);
    for (const auto& [l, id] : scratch.order) token.top.emplace_back(id, logprob(l));
}

}  // namespace

double uniform(uint64_t seed, uint64_t position) {
    std::array<uint32_t, 4> c{static_cast<uint32_t>(position),
                              static_cast<uint32_t>(position >> 32), 0, 0};
    uint32_t k0 = static_cast<uint32_t>(seed);
    uint32_t k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const auto [hi0, lo0] = multiply(0xD2511F53u, c[0]);
        const auto [hi1, lo1] = multiply(0xCD9E8D57u, c[2]);
        c = {hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = (static_cast<uint64_t>(c[0]) << 21) | (c[1] >> 11);
    return static_cast<double>(bits) * 0x1.0p-53;
}

wire::Token sample(std::span<const float> logits, const wire::Sequence& sequence,
                   SamplerScratch& scratch, std::span<const uint32_t> mask) {
    wire::Token token;
    if (logits.empty()) return token;
    adjust(logits, sequence, scratch);
    if (!mask.empty()) apply_mask(mask, scratch.logits);
    token.id = pick(sequence, scratch);
    const int32_t top = sequence.sampling.top_logprobs;
    if (top >= 0) add_logprobs(logits, top, scratch, token);
    return token;
}

wire::Finish finish_after(const wire::Sequence& sequence, TokenId token, uint32_t max_model_len) {
    const wire::Sampling& s = sequence.sampling;
    const size_t emitted = sequence.emitted.size() + 1;
    if (sequence.emitted.size() >= s.min_tokens &&
        std::ranges::find(s.stop_ids, token) != s.stop_ids.end())
        return wire::Finish::kStop;
    if (emitted >= s.max_tokens || sequence.prompt.size() + emitted >= max_model_len)
        return wire::Finish::kLength;
    return wire::Finish::kNone;
}

}  // namespace baton::sched
