#include "text/bpe.hpp"

#include <algorithm>
#include <cstring>
#include <queue>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr size_t kShortPiece = 32;

bool stands_for_itself(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

struct ByteAlphabet {
    std::array<uint32_t, 256> chars{};
    std::array<int16_t, 512> bytes{};
    ByteAlphabet() {
        bytes.fill(-1);
        uint32_t next = 256;
        for (uint32_t b = 0; b < 256; ++b) {
            chars[b] = stands_for_itself(b) ? b : next++;
            bytes[chars[b]] = static_cast<int16_t>(b);
        }
    }
};
const ByteAlphabet& alphabet() {
    static const ByteAlphabet table;
    return table;
}

uint64_t pair_key(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
}
uint64_t mix(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15ULL;
    return key ^ (key >> 29);
}

/// Slots of an open-addressing table for `count` entries: a power of two, at most half of them
/// taken.
size_t table_size(size_t count) {
    size_t size = 16;
    while (size < count * 2) size *= 2;
    return size;
}

uint64_t hash_of(std::string_view bytes) {
    uint64_t hash = bytes.size();
    const auto take = [&hash](uint64_t word) {
        hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 29;
    };
    uint64_t word = 0;
    for (; bytes.size() >= sizeof word; bytes.remove_prefix(sizeof word)) {
        std::memcpy(&word, bytes.data(), sizeof word);
        take(word);
    }
    word = 0;
    std::memcpy(&word, bytes.data(), bytes.size());
    take(word);
    return hash;
}

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

/// Where the next "▁" behind another character is, at or after `from`; npos where there is none.
size_t next_cut(std::string_view text, size_t from) {
    for (size_t at = from; (at = text.find(kMetaspace, at)) != std::string_view::npos;
         at += kMetaspace.size()) {
        if (at > 0 && !text.substr(0, at).ends_with(kMetaspace)) return at;
    }
    return std::string_view::npos;
}

std::string byte_token(unsigned byte) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

}  // namespace

uint32_t byte_to_char(uint8_t byte) {
    return alphabet().chars[byte];
}
int char_to_byte(uint32_t code) {
    return code < alphabet().bytes.size() ? alphabet().bytes[code] : -1;
}

std::string spell_bytes(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size() * 2);
    for (const char c : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(c)));
    return out;
}

void Bpe::MergeTable::reserve(size_t count) {
    slots_.assign(table_size(count), {});
    mask_ = slots_.size() - 1;
}

void Bpe::MergeTable::put(TokenId left, TokenId right, uint32_t rank, TokenId result) {
    const uint64_t key = pair_key(left, right);
    uint64_t at = mix(key) & mask_;
    while (slots_[at].key != UINT64_MAX && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, rank, result};
}

const Bpe::MergeTable::Entry* Bpe::MergeTable::get(TokenId left, TokenId right) const {
    const uint64_t key = pair_key(left, right);
    for (uint64_t at = mix(key) & mask_; slots_[at].key != UINT64_MAX; at = (at + 1) & mask_) {
        if (slots_[at].key == key) return &slots_[at];
    }
    return nullptr;
}

void Bpe::WholeTokens::build(const std::vector<std::string>& tokens, bool byte_level) {
    begins_.reserve(tokens.size() + 1);
    for (const std::string& spelling : tokens) {
        begins_.push_back(static_cast<uint32_t>(bytes_.size()));
        if (!byte_level) {
            bytes_ += spelling;
            continue;
        }
        for (size_t pos = 0; pos < spelling.size();) {
            const CodePoint cp = decode_utf8(spelling, pos);
            pos += cp.length;
            const int byte = char_to_byte(cp.code);
            if (byte < 0) {  // no text has a piece of these characters
                bytes_.resize(begins_.back());
                break;
            }
            bytes_ += static_cast<char>(byte);
        }
    }
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    certain_ = std::make_unique<std::atomic<bool>[]>(tokens.size());
    slots_.resize(table_size(tokens.size()));
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        if (bytes_of(id).empty()) continue;
        const uint64_t hash = hash_of(bytes_of(id));
        uint64_t at = hash & (slots_.size() - 1);
        while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
    }
}

std::string_view Bpe::WholeTokens::bytes_of(TokenId id) const {
    const uint32_t begin = begins_[static_cast<size_t>(id)];
    return std::string_view(bytes_).substr(begin, begins_[static_cast<size_t>(id) + 1] - begin);
}

TokenId Bpe::WholeTokens::find(std::string_view piece) const {
    if (slots_.empty()) return -1;
    const uint64_t hash = hash_of(piece);
    for (uint64_t at = hash & (slots_.size() - 1); slots_[at].id >= 0;
         at = (at + 1) & (slots_.size() - 1)) {
        if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) &&
            bytes_of(slots_[at].id) == piece)
            return slots_[at].id;
    }
    return -1;
}

Expected<void> Bpe::index_tokens(std::vector<std::string> tokens, Options options,
                                 const std::unordered_set<TokenId>& barred) {
    options_ = std::move(options);
    tokens_ = std::move(tokens);
    barred_ = barred;
    ids_.reserve(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
        const std::string& spelling = tokens_[id];
        if (spelling.empty()) continue;
        if (!ids_.emplace(spelling, static_cast<TokenId>(id)).second) {
            return fail(ErrorCode::kCorrupt,
                        "tokenizer: token " + std::to_string(id) + " repeats another's spelling");
        }
    }
    whole_.build(tokens_, options_.byte_level);
    for (unsigned byte = 0; byte < 256; ++byte) {
        std::string spelling;
        append_utf8(spelling, byte_to_char(static_cast<uint8_t>(byte)));
        byte_ids_[byte] = find(spelling);
        byte_tokens_[byte] = find(byte_token(byte));
    }
    if (!options_.unk_token.empty()) {
        unk_ = find(options_.unk_token);
        if (unk_ < 0)
            return fail(ErrorCode::kCorrupt, "tokenizer: unk_token is not in the vocabulary");
    }
    find_cuts();
    return {};
}

/// Words of a text without a pre-tokenizer may be merged one by one where no token spans two.
void Bpe::find_cuts() {
    if (options_.byte_level || options_.ignore_merges || find(kMetaspace) < 0) return;
    for (size_t id = 0; id < tokens_.size(); ++id) {
        if (barred_.contains(static_cast<TokenId>(id))) continue;
        if (next_cut(tokens_[id], 0) != std::string::npos) return;
    }
    cut_at_spaces_ = true;
}

Expected<Bpe> Bpe::build(std::vector<std::string> tokens, const std::vector<Merge>& merges,
                         Options options, const std::unordered_set<TokenId>& barred) {
    Bpe bpe;
    BATON_TRY(bpe.index_tokens(std::move(tokens), std::move(options), barred));
    if (bpe.options_.ignore_merges) {
        for (size_t id = 0; id < bpe.tokens_.size(); ++id) {
            if (!barred.contains(static_cast<TokenId>(id)))
                bpe.whole_.make_certain(static_cast<TokenId>(id));
        }
    }
    bpe.merges_.reserve(merges.size() + 1);
    std::string joined;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        joined.assign(merges[rank].left).append(merges[rank].right);
        const TokenId left = bpe.find(merges[rank].left);
        const TokenId right = bpe.find(merges[rank].right);
        const TokenId result = bpe.find(joined);
        if (left < 0 || right < 0 || result < 0) {
            return fail(ErrorCode::kCorrupt, "tokenizer: merge " + std::to_string(rank) +
                                                 " uses a token that is not in the vocabulary");
        }
        if (!barred.contains(result))
            bpe.merges_.put(left, right, static_cast<uint32_t>(rank), result);
    }
    return bpe;
}

TokenId Bpe::find(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? -1 : it->second;
}

std::string_view Bpe::token(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size()
               ? std::string_view(tokens_[static_cast<size_t>(id)])
               : std::string_view();
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
    while (cut_at_spaces_ && !piece.empty()) {
        const size_t cut = next_cut(piece, 0);
        if (cut == std::string_view::npos) break;
        encode_part(piece.substr(0, cut), out);
        piece.remove_prefix(cut);
    }
    encode_part(piece, out);
}

void Bpe::encode_part(std::string_view piece, std::vector<TokenId>& out) const {
    if (piece.empty()) return;
    const TokenId whole = whole_.find(piece);
    if (whole >= 0 && whole_.certain(whole)) {
        out.push_back(whole);
        return;
    }
    const size_t begin = out.size();
    if (!ranks_.empty()) {
        encode_scored(piece, out);
    } else {
        symbols(piece, out);
        const auto ids = std::span(out).subspan(begin);
        out.resize(begin + (ids.size() <= kShortPiece ? merge_short(ids) : merge_long(ids)));
    }
    if (whole >= 0 && out.size() == begin + 1 && out.back() == whole) whole_.make_certain(whole);
}

void Bpe::symbols(std::string_view piece, std::vector<TokenId>& out) const {
    if (options_.byte_level) {
        byte_symbols(piece, out);
    } else {
        char_symbols(piece, out);
    }
}

void Bpe::byte_symbols(std::string_view piece, std::vector<TokenId>& out) const {
    bool unk_open = false;
    for (const char c : piece) {
        const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
        if (id >= 0) {
            out.push_back(id);
            unk_open = false;
        } else if (unk_ >= 0 && !(unk_open && options_.fuse_unk)) {
            out.push_back(unk_);
            unk_open = true;
        }
    }
}

void Bpe::char_symbols(std::string_view piece, std::vector<TokenId>& out) const {
    bool unk_open = false;
    for (size_t pos = 0; pos < piece.size();) {
        const std::string_view one = piece.substr(pos, decode_utf8(piece, pos).length);
        pos += one.size();
        if (const TokenId id = find(one); id >= 0) {
            out.push_back(id);
            unk_open = false;
            continue;
        }
        push_unknown(one, unk_open, out);
    }
}

/// A character that is no token; `unk_open`: the id before is the unknown token's.
void Bpe::push_unknown(std::string_view one, bool& unk_open, std::vector<TokenId>& out) const {
    const bool bytes_known =
        options_.byte_fallback && std::all_of(one.begin(), one.end(), [this](char c) {
            return byte_tokens_[static_cast<uint8_t>(c)] >= 0;
        });
    if (bytes_known) {
        for (const char c : one) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
        unk_open = false;
    } else if (unk_ >= 0 && !(unk_open && options_.fuse_unk)) {
        out.push_back(unk_);
        unk_open = true;
    }
}

/// Merges in place; how many ids are left at the front.
size_t Bpe::merge_short(std::span<TokenId> ids) const {
    std::array<const MergeTable::Entry*, kShortPiece> next;  // NOLINT: filled as far as it is read
    size_t count = ids.size();
    for (size_t i = 0; i + 1 < count; ++i) next[i] = merges_.get(ids[i], ids[i + 1]);
    for (;;) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; ++i) {
            if (next[i] != nullptr && (best == SIZE_MAX || next[i]->rank < next[best]->rank))
                best = i;
        }
        if (best == SIZE_MAX) return count;
        ids[best] = next[best]->result;
        --count;
        for (size_t i = best + 1; i < count; ++i) {
            ids[i] = ids[i + 1];
            next[i] = next[i + 1];
        }
        next[best] = best + 1 < count ? merges_.get(ids[best], ids[best + 1]) : nullptr;
        if (best > 0) next[best - 1] = merges_.get(ids[best - 1], ids[best]);
    }
}

// A heap of (rank, position) keys. A key is stale when the pair at its position has another rank by
// then.
size_t Bpe::merge_long(std::span<TokenId> ids) const {
    const size_t count = ids.size();
    std::vector<uint32_t> right(count);
    std::vector<uint32_t> left(count);
    std::vector<uint64_t> keys;
    keys.reserve(count);
    const auto end = static_cast<uint32_t>(count);
    for (uint32_t i = 0; i < end; ++i) {
        left[i] = i == 0 ? end : i - 1;
        right[i] = i + 1;
        if (i + 1 == end) continue;
        if (const auto* merge = merges_.get(ids[i], ids[i + 1]))
            keys.push_back((uint64_t{merge->rank} << 32) | i);
    }
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(keys));
    const auto offer = [&](uint32_t at) {
        if (at == end || right[at] == end) return;
        if (const auto* merge = merges_.get(ids[at], ids[right[at]]))
            heap.push((uint64_t{merge->rank} << 32) | at);
    };
    while (!heap.empty()) {
        const uint64_t key = heap.top();
        heap.pop();
        const auto at = static_cast<uint32_t>(key);
        if (ids[at] < 0 || right[at] == end) continue;
        const uint32_t other = right[at];
        const auto* merge = merges_.get(ids[at], ids[other]);
        if (merge == nullptr || merge->rank != static_cast<uint32_t>(key >> 32)) continue;
        ids[at] = merge->result;
        ids[other] = -1;
        right[at] = right[other];
        if (right[other] != end) left[right[other]] = at;
        offer(left[at]);
        offer(at);
    }
    return static_cast<size_t>(std::remove(ids.begin(), ids.end(), -1) - ids.begin());
}

}  // namespace baton::text
