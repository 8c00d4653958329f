#include "baton/sched/sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace baton::sched {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr float kLogprobMin = -9999.0f;  // what clients of the OpenAI API expect instead of -inf
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

TokenId largest(std::span<const float> logits) {
    size_t best = 0;
    for (size_t i = 1; i < logits.size(); ++i)
        if (logits[i] > logits[best]) best = i;
    return static_cast<TokenId>(best);
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

/// Weight of a logit relative to the largest, which has weight 1.
double weight(float logit, float max, float temperature) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(max)) /
                    static_cast<double>(temperature));
}

/// Draws from `logits` in id order: no filter but min-p is on.
TokenId draw_unordered(std::span<const float> logits, float max, const wire::Sampling& s,
                       double u) {
    const double bar = static_cast<double>(s.min_p);
    double total = 0;
    for (const float l : logits)
        if (const double w = weight(l, max, s.temperature); w >= bar) total += w;
    double left = u * total;
    TokenId last = largest(logits);
    for (size_t i = 0; i < logits.size(); ++i) {
        const double w = weight(logits[i], max, s.temperature);
        if (w < bar || w <= 0) continue;
        last = static_cast<TokenId>(i);
        if (left < w) return last;
        left -= w;
    }
    return last;  // rounding left a crumb
}

/// Brings the `n` largest of `order` to its front, sorted.
void sort_front(std::vector<Candidate>& order, size_t n) {
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(n);
    if (n < order.size()) std::nth_element(order.begin(), middle, order.end(), before);
    std::sort(order.begin(), middle, before);
}

/// How many of the largest candidates hold `top_p` of `total`; sorts as many as needed.
size_t top_p_count(std::vector<Candidate>& order, size_t limit, double total, float max,
                   const wire::Sampling& s) {
    const double want = static_cast<double>(s.top_p) * total;
    for (size_t n = std::min(kFirstCandidates, limit);; n = std::min(n * 8, limit)) {
        sort_front(order, n);
        double sum = 0;
        for (size_t i = 0; i < n; ++i) {
            sum += weight(order[i].first, max, s.temperature);
            if (sum >= want) return i + 1;
        }
        if (n == limit) return limit;
    }
}

/// Draws after top-k, then top-p of what is left, then min-p; walks from the most likely down.
TokenId draw_ordered(SamplerScratch& scratch, float max, const wire::Sampling& s, double u) {
    std::vector<Candidate>& order = scratch.order;
    order.clear();
    for (size_t i = 0; i < scratch.logits.size(); ++i)
        order.emplace_back(scratch.logits[i], static_cast<TokenId>(i));
    size_t kept = order.size();
    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < kept) {
        kept = static_cast<size_t>(s.top_k);
        sort_front(order, kept);
        order.resize(kept);
    }
    if (s.top_p < 1.0f) {
        double total = 0;
        for (const auto& [l, id] : order) total += weight(l, max, s.temperature);
        kept = top_p_count(order, kept, total, max, s);
    }
    double total = 0;
    size_t n = 0;
    for (; n < kept; ++n) {
        const double w = weight(order[n].first, max, s.temperature);
        if (n > 0 && (w < static_cast<double>(s.min_p) || w <= 0)) break;
        total += w;
    }
    double left = u * total;
    for (size_t i = 0; i < n; ++i) {
        const double w = weight(order[i].first, max, s.temperature);
        if (left < w) return order[i].second;
        left -= w;
    }
    return order[n == 0 ? 0 : n - 1].second;
}

TokenId pick(const wire::Sequence& sequence, SamplerScratch& scratch) {
    const wire::Sampling& s = sequence.sampling;
    const TokenId best = largest(scratch.logits);
    const float max = scratch.logits[static_cast<size_t>(best)];
    // An infinite maximum has no distribution to draw from.
    if (!(s.temperature > 0.0f) || !std::isfinite(max)) return best;
    const double u = uniform(s.seed, sequence.prompt.size() + sequence.emitted.size());
    const bool top_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < scratch.logits.size();
    if (top_k || s.top_p < 1.0f) return draw_ordered(scratch, max, s, u);
    return draw_unordered(scratch.logits, max, s, u);
}

/// Log softmax of the raw logits: the sampled id's, and the `top_logprobs` largest.
void add_logprobs(std::span<const float> raw, int32_t top, SamplerScratch& scratch,
                  wire::Token& token) {
    std::vector<Candidate>& order = scratch.order;
    order.clear();
    for (size_t i = 0; i < raw.size(); ++i)
        order.emplace_back(std::isnan(raw[i]) ? kMinusInf : raw[i], static_cast<TokenId>(i));
    const float own = order[static_cast<size_t>(token.id)].first;
    const float max =
        std::max_element(order.begin(), order.end(), [](const Candidate& a, const Candidate& b) {
            return a.first < b.first;
        })->first;
    double sum = 0;
    for (const auto& [l, id] : order)
        if (std::isfinite(max)) sum += std::exp(static_cast<double>(l) - static_cast<double>(max));
    const double log_total = std::isfinite(max) ? static_cast<double>(max) + std::log(sum) : 0.0;
    const auto logprob = [&](float l) {
        if (!std::isfinite(max)) return l == max && max > 0 ? 0.0f : kLogprobMin;
        return std::max(static_cast<float>(static_cast<double>(l) - log_total), kLogprobMin);
    };
    token.logprob = logprob(own);
    const size_t n = std::min(order.size(), static_cast<size_t>(top));
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                      before);
    for (size_t i = 0; i < n; ++i) token.top.emplace_back(order[i].second, logprob(order[i].first));
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
                   SamplerScratch& scratch) {
    wire::Token token;
    if (logits.empty()) return token;
    adjust(logits, sequence, scratch);
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
