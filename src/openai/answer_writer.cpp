#include "openai/answer_writer.hpp"

#include <algorithm>

#include "baton/openai/json.hpp"
#include "baton/openai/response.hpp"
#include "openai/json_text.hpp"

namespace baton::openai {
namespace {

constexpr size_t kChunkRestBytes =
    96;  ///< of a chunk beside its head, delta and usage, logprobs left out

}  // namespace

AnswerWriter::AnswerWriter(const ResponseOptions& options, const text::Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer), chunk_head_("data: " + head(true)) {}

std::string AnswerWriter::head(bool chunk) const {
    const char* chat_object = chunk ? "chat.completion.chunk" : "chat.completion";
    std::string out = "{\"id\":";
    append_json_string(out, options_.id);
    out.append(",\"object\":\"").append(options_.chat ? chat_object : "text_completion");
    out.append("\",\"created\":").append(std::to_string(options_.created_s)).append(",\"model\":");
    append_json_string(out, options_.model);
    out.append(",\"system_fingerprint\":");
    append_json_string(out, options_.system_fingerprint);
    out.append(",\"choices\":[");
    return out;
}

void AnswerWriter::append_chunk(std::string& out, uint32_t index, std::string_view delta,
                                std::span<const LogprobEntry> entries, const char* finish_reason,
                                std::string_view usage) const {
    out.reserve(out.size() + chunk_head_.size() + delta.size() + usage.size() + kChunkRestBytes);
    out.append(chunk_head_).append("{\"index\":").append(std::to_string(index));
    out.append(options_.chat ? ",\"delta\":" : ",\"text\":").append(delta).append(",\"logprobs\":");
    append_logprobs(out, entries, true);
    out.append(",\"finish_reason\":");
    if (finish_reason == nullptr) {
        out.append("null");
    } else {
        out.append("\"").append(finish_reason).append("\"");
    }
    out.append("}],\"usage\":").append(usage).append("}\r\n\r\n");
}

void AnswerWriter::append_usage_chunk(std::string& out, std::string_view usage) const {
    out.append(chunk_head_).append("],\"usage\":").append(usage).append("}\r\n\r\n");
}

std::string AnswerWriter::usage(const Usage& usage) const {
    std::string out = "{\"prompt_tokens\":" + std::to_string(usage.prompt_tokens);
    out.append(",\"completion_tokens\":").append(std::to_string(usage.completion_tokens));
    out.append(",\"total_tokens\":")
        .append(std::to_string(usage.prompt_tokens + usage.completion_tokens));
    out.append(",\"prompt_tokens_details\":{\"cached_tokens\":")
        .append(std::to_string(usage.cached_tokens));
    out.append("}");
    if (options_.chat && options_.reasoning != Reasoning::kOff) {
        out.append(",\"completion_tokens_details\":{\"reasoning_tokens\":");
        out.append(std::to_string(usage.reasoning_tokens)).append("}");
    }
    out.append("}");
    return out;
}

void AnswerWriter::append_chat_entry(std::string& out, TokenId id, float logprob) const {
    out.append("{\"token\":");
    append_json_string(out, piece_text(tokenizer_, id));
    out.append(",\"logprob\":");
    append_json_float(out, logprob);
    out.append(",\"bytes\":[");
    bool first = true;
    for (const char byte : tokenizer_.token_bytes(id)) {
        if (!first) out.push_back(',');
        first = false;
        out.append(std::to_string(static_cast<uint8_t>(byte)));
    }
    out.append("]");
}

void AnswerWriter::append_logprobs(std::string& out, std::span<const LogprobEntry> entries,
                                   bool null_when_empty) const {
    if (options_.generation.top_logprobs < 0 || (null_when_empty && entries.empty())) {
        out.append("null");
        return;
    }
    if (!options_.chat) return append_completion_logprobs(out, entries);
    out.append("{\"content\":[");
    const auto wanted = static_cast<size_t>(options_.generation.top_logprobs);
    for (size_t i = 0; i < entries.size(); ++i) {
        if (i != 0) out.push_back(',');
        append_chat_entry(out, entries[i].id, entries[i].logprob);
        out.append(",\"top_logprobs\":[");
        for (size_t k = 0; k < entries[i].top.size() && k < wanted; ++k) {
            if (k != 0) out.push_back(',');
            append_chat_entry(out, entries[i].top[k].first, entries[i].top[k].second);
            out.push_back('}');
        }
        out.append("]}");
    }
    out.append("],\"refusal\":null}");
}

void AnswerWriter::append_completion_logprobs(std::string& out,
                                              std::span<const LogprobEntry> entries) const {
    std::string tokens;
    std::string logprobs;
    std::string tops;
    std::string offsets;
    const auto wanted = static_cast<size_t>(options_.generation.top_logprobs);
    for (const LogprobEntry& entry : entries) {
        const char* comma = tokens.empty() ? "" : ",";
        append_json_string(tokens.append(comma), entry.piece);
        offsets.append(comma).append(std::to_string(entry.characters));
        if (!entry.known) {
            logprobs.append(comma).append("null");
            tops.append(comma).append("null");
            continue;
        }
        append_json_float(logprobs.append(comma), entry.logprob);
        tops.append(comma).append("{");
        std::vector<std::string>
            keys;  // two ids may print alike: the better one, which comes first, stays
        for (size_t k = 0; k < entry.top.size() && k < wanted; ++k) {
            const auto& [id, logprob] = entry.top[k];
            std::string key = id == entry.id ? entry.piece : piece_text(tokenizer_, id);
            if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
            append_json_string(keys.empty() ? tops : tops.append(","), key);
            append_json_float(tops.append(":"), logprob);
            keys.push_back(std::move(key));
        }
        tops.append("}");
    }
    out.append("{\"tokens\":[").append(tokens).append("],\"token_logprobs\":[").append(logprobs);
    out.append("],\"top_logprobs\":[")
        .append(tops)
        .append("],\"text_offset\":[")
        .append(offsets)
        .append("]}");
}

size_t AnswerWriter::entry_bytes(const LogprobEntry& entry) {
    // A token of 16 bytes prints some 130 bytes in the chat style; long tokens are rare and counted
    // four bytes a byte.
    return (entry.top.size() + 1) * (130 + 10 * entry.piece.size());
}

}  // namespace baton::openai
