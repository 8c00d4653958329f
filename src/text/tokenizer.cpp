#include "baton/text/tokenizer.hpp"

#include <algorithm>
#include <unordered_set>

#include "text/tokenizer_parts.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

/// The user's byte ranges of a prompt, in order.
class UserRanges {
  public:
    void add(Span span) {
        if (span.begin == span.end) return;
        if (!spans_.empty() && spans_.back().end == span.begin) {
            spans_.back().end = span.end;
        } else {
            spans_.push_back(span);
        }
    }
    [[nodiscard]] bool touches(Span span) const {
        const auto it =
            std::lower_bound(spans_.begin(), spans_.end(), span.begin,
                             [](const Span& s, size_t begin) { return s.end <= begin; });
        return it != spans_.end() && it->begin < span.end;
    }

  private:
    std::vector<Span> spans_;
};

class BpeTokenizer final : public Tokenizer {
  public:
    explicit BpeTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
        added_.build(std::move(parts_.added), parts_.normalizer);
        size_t size = parts_.bpe.size();
        for (const AddedToken& token : added_.tokens())
            size = std::max(size, static_cast<size_t>(token.id) + 1);
        bytes_.resize(size);
        for (size_t i = 0; i < size; ++i) {
            const auto id = static_cast<TokenId>(i);
            const AddedToken* token = added_.find(id);
            bytes_[i] = token != nullptr ? parts_.decoder.bytes(token->content, true)
                                         : parts_.decoder.bytes(parts_.bpe.token(id), false);
            max_bytes_ = std::max(max_bytes_, bytes_[i].size());
        }
        for (const AddedToken& token : added_.tokens()) spellings_.emplace(token.content, token.id);
    }

    std::vector<TokenId> encode(std::string_view text, bool parse_special,
                                bool add_special) const override {
        std::vector<TokenId> ids;
        if (add_special) ids = parts_.prefix;
        const AddedTokens::Allowed never = [](Span) { return false; };
        encode_text(text, parse_special ? AddedTokens::Allowed() : never, false, ids);
        if (add_special) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
        return ids;
    }

    std::vector<TokenId> encode_segments(std::span<const Segment> segments) const override {
        std::string text;
        UserRanges user;
        for (const Segment& segment : segments) {
            const size_t begin = text.size();
            if (is_valid_utf8(segment.text)) {
                text += segment.text;
            } else {
                text += replace_invalid_utf8(segment.text);
            }
            if (segment.from_user) user.add({begin, text.size()});
        }
        std::vector<TokenId> ids;
        encode_text(
            text, [&user](Span span) { return !user.touches(span); }, true, ids);
        return ids;
    }

    std::string token_bytes(TokenId id) const override {
        return known(id) ? bytes_[static_cast<size_t>(id)] : std::string();
    }

    bool is_special(TokenId id) const override {
        const AddedToken* token = added_.find(id);
        return token != nullptr && token->special;
    }

    TokenId find(std::string_view token) const override {
        const auto it = spellings_.find(token);
        return it != spellings_.end() ? it->second : parts_.bpe.find(token);
    }

    uint32_t vocab_size() const override { return static_cast<uint32_t>(bytes_.size()); }

    std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
        StreamDecoder stream(*this, true);
        std::string out;
        for (const TokenId id : ids) {
            if (!(skip_special && is_special(id))) out += stream.push(id);
        }
        return out + stream.finish();
    }

    bool strips_leading_space() const override { return parts_.decoder.strips_leading_space(); }
    std::string first_token_bytes(TokenId id) const override {
        if (!known(id)) return {};
        const AddedToken* token = added_.find(id);
        return parts_.decoder.first_bytes(token != nullptr ? token->content : parts_.bpe.token(id),
                                          token != nullptr);
    }
    bool replaces_single_bytes() const override { return parts_.decoder.replaces_single_bytes(); }
    size_t max_token_bytes() const override { return max_bytes_; }

  private:
    [[nodiscard]] bool known(TokenId id) const {
        return id >= 0 && static_cast<size_t>(id) < bytes_.size();
    }

    /// Added tokens in the raw text, then normalisation, then added tokens in normalised text, then
    /// pieces, then BPE. `retry` with `allowed`: see AddedTokens::split. Where a normalised part
    /// holds user text, special tokens that match after normalisation are left out, as ranges are
    /// not known there any more.
    void encode_text(std::string_view input, const AddedTokens::Allowed& allowed, bool retry,
                     std::vector<TokenId>& ids) const {
        std::string repaired;
        if (!is_valid_utf8(input)) {
            repaired = replace_invalid_utf8(input);
            input = repaired;
        }
        std::vector<AddedSplit> raw;
        added_.split(input, false, allowed, retry, raw);
        std::vector<AddedSplit> inner;
        Pieces pieces;
        std::string changed;
        for (const AddedSplit& part : raw) {
            if (part.id >= 0) {
                ids.push_back(part.id);
                continue;
            }
            std::string_view text = input.substr(part.span.begin, part.span.end - part.span.begin);
            if (!parts_.normalizer.empty()) {
                changed = parts_.normalizer.apply(text);
                text = changed;
            }
            AddedTokens::Allowed inner_allowed;
            if (allowed && !allowed(part.span)) inner_allowed = [](Span) { return false; };
            inner.clear();
            added_.split(text, true, inner_allowed, retry, inner);
            for (const AddedSplit& split : inner) {
                if (split.id >= 0) {
                    ids.push_back(split.id);
                    continue;
                }
                const bool at_start = part.span.begin == 0 && split.span.begin == 0;
                parts_.pre_tokenizer.cut(
                    text.substr(split.span.begin, split.span.end - split.span.begin), at_start,
                    pieces);
                for (const std::string_view piece : pieces.list) parts_.bpe.encode(piece, ids);
            }
        }
    }

    TokenizerParts parts_;
    AddedTokens added_;
    std::vector<std::string> bytes_;
    std::unordered_map<std::string_view, TokenId> spellings_;  // views into added_
    size_t max_bytes_ = 1;
};

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerParts parts) {
    if (parts.added.size() > kAddedTokensMax) {
        return fail(ErrorCode::kCorrupt,
                    "tokenizer: more than " + std::to_string(kAddedTokensMax) + " added tokens");
    }
    std::unordered_set<TokenId> ids;
    std::unordered_set<std::string_view> contents;
    for (const AddedToken& token : parts.added) {
        const std::string id = std::to_string(token.id);
        if (token.id < 0 || token.id > kTokenIdMax) {
            return fail(ErrorCode::kCorrupt,
                        "tokenizer: added token id " + id + " is out of range");
        }
        if (token.content.size() > kAddedTokenBytesMax || !is_valid_utf8(token.content)) {
            return fail(ErrorCode::kCorrupt,
                        "tokenizer: added token " + id + " is too long or not UTF-8");
        }
        if (!ids.insert(token.id).second)
            return fail(ErrorCode::kCorrupt, "tokenizer: added token id " + id + " twice");
        if (!contents.insert(token.content).second) {
            return fail(ErrorCode::kCorrupt,
                        "tokenizer: added token " + id + " repeats another's spelling");
        }
        const std::string_view in_vocab = parts.bpe.token(token.id);
        const TokenId vocab_id = parts.bpe.find(token.content);
        if ((!in_vocab.empty() && in_vocab != token.content) ||
            (vocab_id >= 0 && vocab_id != token.id)) {
            return fail(ErrorCode::kCorrupt,
                        "tokenizer: added token " + id + " contradicts the vocabulary");
        }
    }
    for (const auto* list : {&parts.prefix, &parts.suffix}) {
        for (const TokenId id : *list) {
            if (parts.bpe.token(id).empty() && !ids.contains(id)) {
                return fail(ErrorCode::kCorrupt,
                            "tokenizer: post_processor uses unknown id " + std::to_string(id));
            }
        }
    }
    return std::make_shared<BpeTokenizer>(std::move(parts));
}

}  // namespace baton::text
