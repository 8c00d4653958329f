// Bpe of SentencePiece's kind: merges by the score of what they make.
#include <algorithm>
#include <cmath>
#include <queue>

#include "text/bpe.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

/// Ranks of scores: the highest is 0, equal ones share a rank.
std::vector<uint32_t> ranks_of(std::span<const float> scores) {
    std::vector<float> order(scores.begin(), scores.end());
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    std::vector<uint32_t> ranks(scores.size());
    for (size_t id = 0; id < scores.size(); ++id) {
        const auto at = std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>());
        ranks[id] = static_cast<uint32_t>(at - order.begin());
    }
    return ranks;
}

}  // namespace

Expected<Bpe> Bpe::build_scored(std::vector<std::string> tokens, std::span<const float> scores,
                                Options options, const std::unordered_set<TokenId>& barred) {
    if (scores.size() != tokens.size())
        return fail(ErrorCode::kCorrupt, "tokenizer: scores and tokens differ in length");
    if (std::any_of(scores.begin(), scores.end(), [](float s) { return std::isnan(s); }))
        return fail(ErrorCode::kCorrupt, "tokenizer: a score is not a number");
    Bpe bpe;
    options.byte_level = false;
    options.ignore_merges = false;
    BATON_TRY(bpe.index_tokens(std::move(tokens), std::move(options), barred));
    bpe.ranks_ = ranks_of(scores);
    for (size_t id = 0; id < bpe.tokens_.size(); ++id) {
        if (barred.contains(static_cast<TokenId>(id))) {
            bpe.ranks_[id] = kNever;
        } else {
            bpe.token_bytes_max_ = std::max(bpe.token_bytes_max_, bpe.tokens_[id].size());
        }
    }
    return bpe;
}

// A heap of (rank, position) keys as in merge_long(); symbols are stretches of the piece, as a part
// of a token need not be a token.
void Bpe::encode_scored(std::string_view piece, std::vector<TokenId>& out) const {
    std::vector<uint32_t> begins;
    for (size_t pos = 0; pos < piece.size(); pos += decode_utf8(piece, pos).length)
        begins.push_back(static_cast<uint32_t>(pos));
    const auto count = static_cast<uint32_t>(begins.size());
    begins.push_back(static_cast<uint32_t>(piece.size()));
    std::vector<uint32_t> right(count);  // of each symbol, by its first character; 0: merged away
    std::vector<uint32_t> left(count);
    const auto rank_at = [&](uint32_t at) {
        const uint32_t other = right[at];
        if (other == count) return kNever;
        const size_t bytes = begins[right[other]] - begins[at];
        if (bytes > token_bytes_max_) return kNever;
        const TokenId id = whole_.find(piece.substr(begins[at], bytes));
        return id < 0 ? kNever : ranks_[static_cast<size_t>(id)];
    };
    for (uint32_t i = 0; i < count; ++i) {
        right[i] = i + 1;
        left[i] = i == 0 ? count : i - 1;
    }
    std::vector<uint64_t> keys;
    for (uint32_t i = 0; i < count; ++i) {
        if (const uint32_t rank = rank_at(i); rank != kNever)
            keys.push_back((uint64_t{rank} << 32) | i);
    }
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(keys));
    const auto offer = [&](uint32_t at) {
        if (at == count) return;
        if (const uint32_t rank = rank_at(at); rank != kNever)
            heap.push((uint64_t{rank} << 32) | at);
    };
    while (!heap.empty()) {
        const uint64_t key = heap.top();
        heap.pop();
        const auto at = static_cast<uint32_t>(key);
        if (right[at] == 0 || rank_at(at) != static_cast<uint32_t>(key >> 32)) continue;
        const uint32_t gone = right[at];
        right[at] = right[gone];
        right[gone] = 0;
        if (right[at] != count) left[right[at]] = at;
        offer(left[at]);
        offer(at);
    }
    bool unk_open = false;
    for (uint32_t at = 0; at < count; at = right[at]) {
        const std::string_view one = piece.substr(begins[at], begins[right[at]] - begins[at]);
        const TokenId id = whole_.find(one);
        if (id >= 0 && ranks_[static_cast<size_t>(id)] != kNever) {
            out.push_back(id);
            unk_open = false;
        } else {
            push_unknown(one, unk_open, out);
        }
    }
}

}  // namespace baton::text
