#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "baton/text/tokenizer.hpp"

namespace baton::text {
namespace {

using Ids = std::vector<TokenId>;

/// A small vocabulary of SentencePiece's kind: control tokens, byte tokens, then `scored`.
struct Vocabulary {
    GgufTokenizer fields;
    std::map<std::string, TokenId> ids;

    explicit Vocabulary(const std::vector<std::pair<std::string, float>>& scored) {
        fields.model = "llama";
        const auto add = [this](const std::string& token, int32_t type, float score) {
            ids.emplace(token, static_cast<TokenId>(fields.tokens.size()));
            fields.tokens.push_back(token);
            fields.token_type.push_back(type);
            fields.scores.push_back(score);
        };
        add("<unk>", 2, 0);
        add("<s>", 3, 0);
        add("</s>", 3, 0);
        for (unsigned byte = 0; byte < 256; ++byte) {
            constexpr const char* kHex = "0123456789ABCDEF";
            add({'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'}, 6, 0);
        }
        for (const auto& [token, score] : scored) add(token, 1, score);
        fields.unk = 0;
        fields.bos = 1;
        fields.eos = 2;
    }
    [[nodiscard]] std::shared_ptr<const Tokenizer> load() const {
        auto made = Tokenizer::from_gguf(fields);
        EXPECT_TRUE(made) << (made ? "" : made.error().message);
        return made ? *made : nullptr;
    }
};

TEST(ScoredBpe, TheHighestScoreMergesFirstThenTheLeftmost) {
    const Vocabulary v(
        {{"▁", -1}, {"a", -2}, {"b", -3}, {"ab", -9}, {"ba", -8}, {"aa", -7}, {"bab", -6}});
    const auto t = v.load();
    const auto id = [&](const char* s) { return v.ids.at(s); };
    EXPECT_EQ(t->encode("ab", true, false), (Ids{id("▁"), id("ab")}));
    EXPECT_EQ(t->encode("aab", true, false), (Ids{id("▁"), id("aa"), id("b")}));
    EXPECT_EQ(t->encode("aba", true, false), (Ids{id("▁"), id("a"), id("ba")}));
    EXPECT_EQ(t->encode("aaa", true, false), (Ids{id("▁"), id("aa"), id("a")}));
    EXPECT_EQ(t->encode("ab", false, true), (Ids{id("▁"), id("ab")}));
}

TEST(ScoredBpe, PartsOfATokenNeedNotBeTokens) {
    const Vocabulary v({{"▁", -1}, {"xy", -2}, {"xyz", -3}});
    const auto t = v.load();
    EXPECT_EQ(t->encode("xyz", true, false), (Ids{v.ids.at("▁"), v.ids.at("xyz")}));
    EXPECT_EQ(t->encode("x", true, false), (Ids{v.ids.at("▁"), v.ids.at("<0x78>")}));
}

TEST(ScoredBpe, TextBecomesNoControlAndNoByteToken) {
    std::vector<std::pair<std::string, float>> scored{{"▁", -1}};
    for (const char c : std::string("<s>0xA/")) scored.emplace_back(std::string(1, c), -2.0F);
    for (const char* part : {"<s", "<0", "<0x", "<0x0", "<0x0A"}) scored.emplace_back(part, -1.0F);
    const Vocabulary v(scored);
    const auto t = v.load();
    EXPECT_EQ(t->encode("<s>", false, false), (Ids{v.ids.at("▁"), v.ids.at("<s"), v.ids.at(">")}));
    EXPECT_EQ(t->encode("<0x0A>", true, false),
              (Ids{v.ids.at("▁"), v.ids.at("<0x0A"), v.ids.at(">")}));
    EXPECT_EQ(t->encode("<s>", true, false), (Ids{1}));
    const std::vector<Segment> segments{{"<s>", false}, {"<s>", true}};
    EXPECT_EQ(t->encode_segments(segments), (Ids{1, v.ids.at("▁"), v.ids.at("<s"), v.ids.at(">")}));
}

TEST(ScoredBpe, EndsAndSpacesAsTheFileSays) {
    Vocabulary v({{"▁", -1}, {"a", -2}, {"▁a", -1}});
    v.fields.add_bos = v.fields.add_eos = true;
    EXPECT_EQ(v.load()->encode("a", true, true), (Ids{1, v.ids.at("▁a"), 2}));
    v.fields.add_space_prefix = false;
    const auto t = v.load();
    EXPECT_EQ(t->encode("a a", true, true), (Ids{1, v.ids.at("a"), v.ids.at("▁a"), 2}));
    EXPECT_EQ(t->decode(Ids{v.ids.at("▁a")}, false), " a");
    v.fields.add_space_prefix = true;
    EXPECT_EQ(v.load()->decode(Ids{v.ids.at("▁a"), v.ids.at("▁a")}, false), "a a");
}

/// The rule, slow and plain.
Ids slow(const Vocabulary& v, const std::string& spelled) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < spelled.size();) {
        const size_t length = spelled[i] == '\xE2' ? 3 : 1;
        parts.push_back(spelled.substr(i, length));
        i += length;
    }
    for (;;) {
        size_t best = parts.size();
        float score = -std::numeric_limits<float>::infinity();
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto it = v.ids.find(parts[i] + parts[i + 1]);
            if (it == v.ids.end() || v.fields.token_type[static_cast<size_t>(it->second)] != 1)
                continue;
            const float s = v.fields.scores[static_cast<size_t>(it->second)];
            if (best == parts.size() || s > score) {
                best = i;
                score = s;
            }
        }
        if (best == parts.size()) break;
        parts[best] += parts[best + 1];
        parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) ids.push_back(v.ids.at(part));
    return ids;
}

TEST(ScoredBpe, EqualsTheRuleOnRandomVocabulariesAndTexts) {
    uint32_t state = 3;
    const auto next = [&state](uint32_t below) {
        state = state * 1664525 + 1013904223;
        return (state >> 16) % below;
    };
    for (int round = 0; round < 200; ++round) {
        const std::vector<std::string> letters{"a", "b", "▁"};
        std::vector<std::pair<std::string, float>> scored;
        for (const std::string& letter : letters) scored.emplace_back(letter, -20.0F);
        for (int i = 0; i < 12; ++i) {
            std::string token;
            for (uint32_t n = 2 + next(3); n > 0; --n) token += letters[next(3)];
            const bool known = std::any_of(scored.begin(), scored.end(),
                                           [&](const auto& s) { return s.first == token; });
            if (!known) scored.emplace_back(token, -static_cast<float>(next(6)));
        }
        const Vocabulary v(scored);
        const auto t = v.load();
        for (int i = 0; i < 20; ++i) {
            std::string text;
            for (uint32_t n = 1 + next(60); n > 0; --n) text += std::string("ab ")[next(3)];
            std::string spelled = "▁";
            for (const char c : text) spelled += c == ' ' ? std::string("▁") : std::string(1, c);
            EXPECT_EQ(t->encode(text, true, false), slow(v, spelled)) << text;
        }
    }
}

TEST(ScoredBpe, BadScoresAreRefused) {
    Vocabulary v({{"▁", -1}});
    v.fields.scores.pop_back();
    EXPECT_FALSE(Tokenizer::from_gguf(v.fields));
    v.fields.scores.push_back(std::numeric_limits<float>::quiet_NaN());
    EXPECT_FALSE(Tokenizer::from_gguf(v.fields));
    v.fields.scores.back() = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(Tokenizer::from_gguf(v.fields));
}

}  // namespace
}  // namespace baton::text
