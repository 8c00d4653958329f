#include "baton/grammar/vocabulary.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "baton/base/utf8.hpp"

namespace baton::grammar {
namespace {

constexpr uint32_t kCharsMax = 256;  ///< longer tokens are not plain: each number of characters has a mask
constexpr uint32_t kBytesMax = 4096; ///< longer tokens are never allowed
constexpr char kSpecialMark = '\xFF';  ///< before and after a control token's spelling

/// The number of characters of plain text, or 0 where it is none.
uint32_t plain_chars(std::span<const uint8_t> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    uint32_t chars = 0;
    for (size_t i = 0; i < text.size(); ++chars) {
        const uint8_t b = bytes[i];
        const size_t length = valid_utf8_length(text, i);
        if (length == 0 || b < 0x20 || b == 0x7F || b == '"' || b == '\\') return 0;
        i += length;
    }
    return chars <= kCharsMax ? chars : 0;
}

}  // namespace

std::span<const uint8_t> Vocabulary::bytes_of(TokenId id) const {
    if (id < 0 || static_cast<uint32_t>(id) >= size_) return {};
    const auto at = static_cast<size_t>(id);
    return std::span(bytes_).subspan(bytes_at_[at], bytes_at_[at + 1] - bytes_at_[at]);
}

Vocabulary::Tree Vocabulary::make_tree(std::vector<TokenId> ids, const Vocabulary& of) {
    std::ranges::sort(ids, [&](TokenId a, TokenId b) { return std::ranges::lexicographical_compare(of.bytes_of(a), of.bytes_of(b)); });
    Tree tree;
    std::vector<uint32_t> path;  // the nodes down to the last token
    std::span<const uint8_t> last;
    const auto end_from = [&](size_t depth) {
        for (; path.size() > depth; path.pop_back()) tree.nodes[path.back()].end = static_cast<uint32_t>(tree.nodes.size());
    };
    for (const TokenId id : ids) {
        const auto bytes = of.bytes_of(id);
        size_t same = 0;
        while (same < bytes.size() && same < last.size() && bytes[same] == last[same]) ++same;
        end_from(same);
        for (size_t d = same; d < bytes.size(); ++d) {
            path.push_back(static_cast<uint32_t>(tree.nodes.size()));
            tree.nodes.push_back({0, static_cast<uint32_t>(tree.ids.size()), static_cast<uint16_t>(d), bytes[d], 0});
        }
        Tree::Node& node = tree.nodes[path.back()];
        if (node.count == 0) node.tokens = static_cast<uint32_t>(tree.ids.size());
        if (node.count < UINT8_MAX) {
            ++node.count;
            tree.ids.push_back(id);
        }
        last = bytes;
        tree.depth_max = std::max(tree.depth_max, static_cast<uint32_t>(bytes.size()));
    }
    end_from(0);
    return tree;
}

std::shared_ptr<const Vocabulary> Vocabulary::make(std::span<const Token> tokens, uint32_t mask_size) {
    auto made = std::make_shared<Vocabulary>();
    Vocabulary& v = *made;
    v.size_ = mask_size;
    v.bytes_at_.reserve(mask_size + 1);
    v.bytes_at_.push_back(0);
    std::vector<std::pair<uint32_t, TokenId>> plain;
    std::vector<TokenId> plain_ids, rest;
    for (uint32_t id = 0; id < mask_size; ++id) {
        const Token* token = id < tokens.size() ? &tokens[id] : nullptr;
        // No text has the mark's byte, so neither has a token that stands for text.
        const bool usable = token != nullptr && !token->bytes.empty() && token->bytes.size() <= kBytesMax &&
                            token->bytes.find(kSpecialMark) == std::string::npos;
        if (usable) {
            if (token->special) v.bytes_.push_back(static_cast<uint8_t>(kSpecialMark));
            v.bytes_.insert(v.bytes_.end(), token->bytes.begin(), token->bytes.end());
            if (token->special) v.bytes_.push_back(static_cast<uint8_t>(kSpecialMark));
        }
        v.bytes_at_.push_back(static_cast<uint32_t>(v.bytes_.size()));
        const size_t size = v.bytes_at_[id + 1] - v.bytes_at_[id];
        v.token_bytes_max_ = std::max(v.token_bytes_max_, static_cast<uint32_t>(size));
    }
    for (uint32_t id = 0; id < mask_size; ++id) {
        const auto token = static_cast<TokenId>(id);
        const auto bytes = v.bytes_of(token);
        if (bytes.empty()) continue;
        const uint32_t chars = plain_chars(bytes);
        if (chars == 0) {
            rest.push_back(token);
            continue;
        }
        plain.emplace_back(chars, token);
        plain_ids.push_back(token);
        v.chars_max_ = std::max(v.chars_max_, chars);
    }
    v.plain_ = make_tree(std::move(plain_ids), v);
    v.rest_ = make_tree(std::move(rest), v);
    std::ranges::sort(plain);
    v.plain_masks_.assign(size_t{v.chars_max_ + 1} * v.words(), 0);
    v.chars_at_.assign(v.chars_max_ + 2, 0);
    for (const auto& [chars, id] : plain) {
        v.by_chars_.push_back(id);
        ++v.chars_at_[chars + 1 <= v.chars_max_ ? chars + 1 : v.chars_max_ + 1];
        v.plain_masks_[size_t{chars} * v.words() + static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
    }
    for (size_t c = 1; c < v.chars_at_.size(); ++c) v.chars_at_[c] += v.chars_at_[c - 1];
    for (size_t i = v.words(); i < v.plain_masks_.size(); ++i) v.plain_masks_[i] |= v.plain_masks_[i - v.words()];
    return made;
}

std::span<const uint32_t> Vocabulary::plain_mask(uint32_t chars) const {
    return std::span(plain_masks_).subspan(size_t{std::min(chars, chars_max_)} * words(), words());
}

std::span<const TokenId> Vocabulary::longer_than(uint32_t chars) const {
    return std::span(by_chars_).subspan(chars_at_[std::min(chars, chars_max_) + 1]);
}

size_t Vocabulary::memory() const {
    return bytes_.size() + bytes_at_.size() * 4 + (plain_.nodes.size() + rest_.nodes.size()) * sizeof(Tree::Node) +
           (plain_.ids.size() + rest_.ids.size() + by_chars_.size()) * sizeof(TokenId) + plain_masks_.size() * 4;
}

}  // namespace baton::grammar
