#include "text/added_tokens.hpp"

#include <algorithm>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

bool word_before(std::string_view text, size_t pos) {
    return pos > 0 && is_regex_word(decode_utf8(text, previous_utf8(text, pos)).code);
}
bool word_at(std::string_view text, size_t pos) {
    return pos < text.size() && is_regex_word(decode_utf8(text, pos).code);
}

size_t space_begin(std::string_view text, size_t pos, size_t floor) {
    while (pos > floor) {
        const size_t previous = previous_utf8(text, pos);
        if ((char_class(decode_utf8(text, previous).code) & kSpace) == 0) break;
        pos = previous;
    }
    return pos;
}
size_t space_end(std::string_view text, size_t pos) {
    while (pos < text.size()) {
        const CodePoint cp = decode_utf8(text, pos);
        if ((char_class(cp.code) & kSpace) == 0) break;
        pos += cp.length;
    }
    return pos;
}

}  // namespace

void AddedTokens::Trie::add(std::string_view content, int32_t token) {
    uint32_t at = 0;
    for (const char c : content) {
        const auto byte = static_cast<uint8_t>(c);
        auto& next = nodes[at].next;
        const auto it =
            std::lower_bound(next.begin(), next.end(), byte,
                             [](const auto& edge, uint8_t b) { return edge.first < b; });
        if (it != next.end() && it->first == byte) {
            at = it->second;
        } else {
            const auto made = static_cast<uint32_t>(nodes.size());
            next.insert(it, {byte, made});
            nodes.emplace_back();  // `next` is not used after this
            at = made;
        }
    }
    if (at != 0 && nodes[at].token < 0) nodes[at].token = token;
}

void AddedTokens::Trie::finish() {
    for (const auto& [byte, node] : nodes[0].next) root[byte] = node;
}

int32_t AddedTokens::Trie::longest(std::string_view text, size_t pos, size_t& end) const {
    uint32_t at = root[static_cast<uint8_t>(text[pos])];
    int32_t best = -1;
    while (at != 0) {
        ++pos;
        if (nodes[at].token >= 0) {
            best = nodes[at].token;
            end = pos;
        }
        if (pos >= text.size()) break;
        const auto byte = static_cast<uint8_t>(text[pos]);
        const auto& next = nodes[at].next;
        const auto it =
            std::lower_bound(next.begin(), next.end(), byte,
                             [](const auto& edge, uint8_t b) { return edge.first < b; });
        at = it != next.end() && it->first == byte ? it->second : 0;
    }
    return best;
}

void AddedTokens::build(std::vector<AddedToken> tokens, const Normalizer& normalizer) {
    tokens_ = std::move(tokens);
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const AddedToken& token = tokens_[i];
        by_id_.emplace(token.id, i);
        if (token.normalized) {
            tries_[1].add(normalizer.apply(token.content), static_cast<int32_t>(i));
        } else {
            tries_[0].add(token.content, static_cast<int32_t>(i));
        }
    }
    for (Trie& trie : tries_) trie.finish();
}

const AddedToken* AddedTokens::find(TokenId id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

void AddedTokens::split(std::string_view text, bool normalized, const Allowed& special_allowed,
                        bool retry, std::vector<AddedSplit>& out) const {
    const Trie& trie = tries_[normalized ? 1 : 0];
    size_t done = 0;  // everything before this is in `out`
    for (size_t pos = 0; pos < text.size();) {
        if (!trie.begins_with(text[pos])) {
            ++pos;
            continue;
        }
        size_t end = 0;
        const int32_t index = trie.longest(text, pos, end);
        if (index < 0) {
            ++pos;
            continue;
        }
        const AddedToken& token = tokens_[static_cast<size_t>(index)];
        const Span match{pos, end};
        pos = end;
        if (token.special && special_allowed && !special_allowed(match)) {
            if (retry) pos = match.begin + 1;
            continue;
        }
        if (token.single_word && (word_before(text, match.begin) || word_at(text, match.end)))
            continue;
        // A match inside the white space that the token before took counts all the same, and text
        // goes on after it: Hugging Face's rule.
        const size_t begin = token.lstrip ? space_begin(text, match.begin, done) : match.begin;
        const size_t stop = token.rstrip ? space_end(text, match.end) : match.end;
        if (begin > done) out.push_back({{done, begin}, -1});
        out.push_back({{begin, stop}, token.id});
        done = stop;
    }
    if (done < text.size()) out.push_back({{done, text.size()}, -1});
}

}  // namespace baton::text
