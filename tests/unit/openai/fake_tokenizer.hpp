#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/text/tokenizer.hpp"

namespace baton::openai::test {

/// Ids 0…255 are single bytes, then come pieces of several, then special tokens.
class FakeTokenizer final : public text::Tokenizer {
  public:
    FakeTokenizer() {
        for (int byte = 0; byte < 256; ++byte) pieces_.emplace_back(1, static_cast<char>(byte));
        for (const char* piece : {"the",
                                  " the",
                                  "hello",
                                  " world",
                                  "\n\n",
                                  "<think>",
                                  "</think>",
                                  "<thi",
                                  "nk>",
                                  "</",
                                  "think",
                                  ">",
                                  "é",
                                  "\xF0\x9F",
                                  "\x99\x82",
                                  "a\xF0",
                                  "\x9F\x99\x82"
                                  "b",
                                  "stop",
                                  "STOP",
                                  "ST",
                                  "OP",
                                  "\xEF\xBF\xBD",
                                  "\"",
                                  "\\",
                                  "\xE6\xBC\xA2\xE5\xAD\x97"}) {
            pieces_.emplace_back(piece);
        }
        first_special_ = static_cast<TokenId>(pieces_.size());
        pieces_.emplace_back("<eos>");
        pieces_.emplace_back("<pad>");
    }
    [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool, bool) const override {
        std::vector<TokenId> out;
        for (const char c : text) out.push_back(static_cast<uint8_t>(c));
        return out;
    }
    [[nodiscard]] std::vector<TokenId> encode_segments(
        std::span<const text::Segment> segments) const override {
        std::vector<TokenId> out;
        for (const auto& segment : segments) {
            for (const TokenId id : encode(segment.text, false, false)) out.push_back(id);
        }
        return out;
    }
    [[nodiscard]] std::string token_bytes(TokenId id) const override {
        return id < 0 || static_cast<size_t>(id) >= pieces_.size()
                   ? std::string()
                   : pieces_[static_cast<size_t>(id)];
    }
    [[nodiscard]] bool is_special(TokenId id) const override { return id >= first_special_; }
    [[nodiscard]] TokenId find(std::string_view token) const override {
        for (size_t i = pieces_.size(); i-- > 0;) {
            if (pieces_[i] == token) return static_cast<TokenId>(i);
        }
        return -1;
    }
    [[nodiscard]] uint32_t vocab_size() const override {
        return static_cast<uint32_t>(pieces_.size());
    }
    [[nodiscard]] std::string decode(std::span<const TokenId> ids,
                                     bool skip_special) const override {
        text::Utf8Assembler assembler;
        std::string out;
        for (const TokenId id : ids) {
            if (!skip_special || !is_special(id)) out += assembler.push(token_bytes(id));
        }
        return out + assembler.finish();
    }
    [[nodiscard]] bool strips_leading_space() const override { return strips_; }
    [[nodiscard]] size_t max_token_bytes() const override { return 8; }
    void set_strips(bool strips) { strips_ = strips; }
    [[nodiscard]] TokenId eos() const { return first_special_; }

  private:
    std::vector<std::string> pieces_;
    TokenId first_special_ = 0;
    bool strips_ = false;
};

}  // namespace baton::openai::test
