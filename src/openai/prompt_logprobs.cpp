#include "openai/prompt_logprobs.hpp"

#include <algorithm>

#include "baton/base/utf8.hpp"
#include "baton/openai/json.hpp"
#include "baton/openai/response.hpp"
#include "openai/json_text.hpp"

namespace baton::openai {
namespace {

void append_entry(std::string& out, const text::Tokenizer& tokenizer, TokenId id, float logprob,
                  size_t rank) {
    out.append("\"").append(std::to_string(id)).append("\":{\"logprob\":");
    append_json_float(out, logprob);
    out.append(",\"rank\":").append(rank == 0 ? "null" : std::to_string(rank));
    out.append(",\"decoded_token\":");
    append_json_string(out, piece_text(tokenizer, id));
    out.append("}");
}

}  // namespace

std::vector<LogprobEntry> prompt_entries(const text::Tokenizer& tokenizer,
                                         std::span<const TokenId> ids,
                                         std::span<const wire::Token> tokens) {
    std::vector<LogprobEntry> out;
    out.reserve(ids.size());
    text::StreamDecoder decoder(tokenizer, true);
    size_t characters = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        LogprobEntry entry;
        entry.id = ids[i];
        entry.characters = characters;
        entry.known = i > 0 && i <= tokens.size();
        if (tokenizer.is_special(ids[i])) {  // a text that is repeated does not show it
            entry.piece = tokenizer.token_bytes(ids[i]);
        } else {
            entry.piece = decoder.push(ids[i]);
            if (i + 1 == ids.size()) entry.piece += decoder.finish();
            characters += count_utf8(entry.piece);
        }
        if (entry.known) {
            entry.logprob = tokens[i - 1].logprob;
            entry.top = tokens[i - 1].top;
        }
        out.push_back(std::move(entry));
    }
    return out;
}

void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            std::span<const TokenId> ids, std::span<const wire::Token> tokens,
                            size_t top) {
    out.append("[");
    for (size_t i = 0; i < ids.size(); ++i) {
        if (i == 0 || i > tokens.size()) {
            out.append(i == 0 ? "null" : ",null");
            continue;
        }
        const wire::Token& token = tokens[i - 1];
        out.append(",{");
        const auto own = std::find_if(token.top.begin(), token.top.end(),
                                      [&](const auto& t) { return t.first == token.id; });
        const size_t rank =
            own == token.top.end() ? 0 : static_cast<size_t>(own - token.top.begin()) + 1;
        append_entry(out, tokenizer, token.id, token.logprob, rank);
        for (size_t k = 0; k < std::min(top, token.top.size()); ++k) {
            if (token.top[k].first == token.id) continue;
            out.push_back(',');
            append_entry(out, tokenizer, token.top[k].first, token.top[k].second, k + 1);
        }
        out.append("}");
    }
    out.append("]");
}

}  // namespace baton::openai
