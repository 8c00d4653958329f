#include "baton/openai/response.hpp"

#include <algorithm>

#include "baton/base/check.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/utf8.hpp"
#include "baton/openai/json.hpp"
#include "openai/answer_writer.hpp"
#include "openai/choice.hpp"
#include "openai/json_text.hpp"
#include "openai/prompt_logprobs.hpp"

namespace baton::openai {
namespace {

constexpr size_t kChunkTextBytesMax =
    8 * 1024;  ///< six times that, all escaped, still fits a frame
constexpr size_t kChunkEntryBytesMax = 8 * 1024;

/// One choice, what of its answer is out, and what waits for the next chunk.
struct Slot {
    Slot(const ResponseOptions& options, const text::Tokenizer& tokenizer, size_t characters)
        : choice(options, tokenizer, characters) {}
    Choice choice;
    bool begun = false;
    std::string reasoning, content;     ///< of a body
    std::vector<CallDelta> calls;       ///< of a body
    std::vector<LogprobEntry> entries;  ///< of a body; in a stream those not sent yet
    uint32_t cached_tokens = 0;
};

}  // namespace

struct ResponseBuilder::Impl {
    Impl(ResponseOptions o, std::shared_ptr<const text::Tokenizer> t)
        : options(std::move(o)), tokenizer(std::move(t)), writer(options, *tokenizer) {
        BATON_CHECK(!options.prompts.empty() && options.generation.n > 0);
        const size_t count = options.prompts.size() * options.generation.n;
        slots.reserve(count);
        for (size_t i = 0; i < count; ++i)
            slots.emplace_back(options, *tokenizer,
                               count_utf8(options.prompts[i / options.generation.n].echo));
        scores.resize(options.prompts.size());
    }

    [[nodiscard]] const PromptUse& prompt_of(uint32_t choice) const {
        return options.prompts[choice / options.generation.n];
    }
    [[nodiscard]] Usage usage() const;
    void stream(std::string& out, uint32_t index, Choice::Output output, bool just_done);
    void begin(std::string& out, uint32_t index);
    void append_calls(std::string& out, uint32_t index, const std::vector<CallDelta>& calls);
    void append_message(std::string& out, const Slot& slot) const;
    void append_texts(std::string& out, uint32_t index, const char* field, std::string_view text);
    void append_piece(std::string& out, uint32_t index, std::string_view delta,
                      size_t entry_bytes_max);
    [[nodiscard]] std::string delta(const char* field, std::string_view text) const;
    [[nodiscard]] std::string chunk_usage() const;
    /// The member that ends an answer, or nothing.
    [[nodiscard]] std::string timings() const {
        if (!options.generation.timings || !options.timings) return {};
        return ",\"timings\":" + options.timings();
    }
    void append_body_choice(std::string& out, uint32_t index) const;
    void append_scores(std::string& out, uint32_t index) const;

    const ResponseOptions options;
    const std::shared_ptr<const text::Tokenizer> tokenizer;
    const AnswerWriter writer;
    std::vector<Slot> slots;
    std::vector<std::vector<wire::Token>> scores;  ///< by prompt: its logprobs
    size_t done = 0;
};

ResponseBuilder::ResponseBuilder(ResponseOptions options,
                                 std::shared_ptr<const text::Tokenizer> tokenizer)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(tokenizer))) {}
ResponseBuilder::~ResponseBuilder() = default;
ResponseBuilder::ResponseBuilder(ResponseBuilder&&) noexcept = default;
ResponseBuilder& ResponseBuilder::operator=(ResponseBuilder&&) noexcept = default;

uint32_t ResponseBuilder::choices() const {
    return static_cast<uint32_t>(impl_->slots.size());
}
bool ResponseBuilder::all_done() const {
    return impl_->done == impl_->slots.size();
}
Usage ResponseBuilder::usage() const {
    return impl_->usage();
}

ResponseBuilder::Update ResponseBuilder::push(uint32_t choice, std::span<const wire::Token> tokens,
                                              wire::Finish finish, uint32_t cached_tokens) {
    BATON_CHECK(choice < impl_->slots.size());
    Slot& slot = impl_->slots[choice];
    Update update;
    if (!slot.choice.done()) {
        slot.cached_tokens = std::max(slot.cached_tokens, cached_tokens);
        Choice::Output output = slot.choice.push(tokens, finish);
        update.stop_found = output.stop_found;
        const bool just_done = slot.choice.done();
        if (just_done) ++impl_->done;
        if (impl_->options.generation.stream) {
            impl_->stream(update.frames, choice, std::move(output), just_done);
        } else {
            slot.reasoning += output.reasoning;
            slot.content += output.content;
            for (CallDelta& call : output.calls) {
                if (call.index < slot.calls.size()) {
                    slot.calls[call.index].arguments += call.arguments;
                } else {
                    slot.calls.push_back(std::move(call));
                }
            }
            std::move(output.entries.begin(), output.entries.end(),
                      std::back_inserter(slot.entries));
        }
    }
    update.choice_done = slot.choice.done();
    update.all_done = all_done();
    return update;
}

void ResponseBuilder::set_prompt_logprobs(uint32_t prompt, std::vector<wire::Token> tokens) {
    BATON_CHECK(prompt < impl_->scores.size());
    if (impl_->options.echo && impl_->options.generation.top_logprobs >= 0) {
        const auto entries =
            prompt_entries(*impl_->tokenizer, impl_->options.prompts[prompt].ids, tokens);
        const uint32_t n = impl_->options.generation.n;
        for (uint32_t k = 0; k < n; ++k) impl_->slots[prompt * n + k].entries = entries;
    }
    impl_->scores[prompt] = std::move(tokens);
}

Usage ResponseBuilder::Impl::usage() const {
    Usage out;
    for (const PromptUse& prompt : options.prompts) out.prompt_tokens += prompt.tokens;
    for (size_t i = 0; i < slots.size(); ++i) {
        out.completion_tokens += slots[i].choice.tokens();
        out.reasoning_tokens += slots[i].choice.reasoning_tokens();
        // A prompt counts once however many choices share it; so does what was cached of it.
        if (i % options.generation.n == 0) out.cached_tokens += slots[i].cached_tokens;
    }
    return out;
}

// ---- streams ----

std::string ResponseBuilder::Impl::delta(const char* field, std::string_view text) const {
    if (!options.chat) return json_string(text);
    std::string out = "{\"";
    out.append(field).append("\":");
    append_json_string(out, text);
    out.push_back('}');
    return out;
}

std::string ResponseBuilder::Impl::chunk_usage() const {
    return options.generation.continuous_usage ? writer.usage(usage()) : "null";
}

/// One chunk, with as many of the waiting logprobs as fit.
void ResponseBuilder::Impl::append_piece(std::string& out, uint32_t index, std::string_view piece,
                                         size_t entry_bytes_max) {
    std::vector<LogprobEntry>& waiting = slots[index].entries;
    size_t bytes = 0;
    size_t count = 0;
    while (count < waiting.size()) {
        bytes += AnswerWriter::entry_bytes(waiting[count]);
        if (count > 0 && bytes > entry_bytes_max) break;
        ++count;
    }
    writer.append_chunk(out, index, piece, std::span(waiting).first(count), nullptr, chunk_usage());
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count));
}

void ResponseBuilder::Impl::append_texts(std::string& out, uint32_t index, const char* field,
                                         std::string_view text) {
    while (!text.empty()) {
        const size_t size = character_boundary(text, kChunkTextBytesMax);
        append_piece(out, index, delta(field, text.substr(0, size)), kChunkEntryBytesMax);
        text.remove_prefix(size);
    }
}

void ResponseBuilder::Impl::begin(std::string& out, uint32_t index) {
    if (std::exchange(slots[index].begun, true)) return;
    if (options.chat) {
        writer.append_chunk(out, index, R"({"role":"assistant","content":""})", {}, nullptr,
                            chunk_usage());
    } else {
        append_texts(out, index, "text", prompt_of(index).echo);
    }
}

/// Parts of calls: first its id and name, then text of its arguments.
void ResponseBuilder::Impl::append_calls(std::string& out, uint32_t index,
                                         const std::vector<CallDelta>& calls) {
    for (const CallDelta& call : calls) {
        const std::string head = "{\"tool_calls\":[{\"index\":" + std::to_string(call.index);
        if (!call.id.empty()) {
            std::string piece = head + ",\"id\":" + json_string(call.id);
            piece.append(",\"type\":\"function\",\"function\":{\"name\":");
            append_json_string(piece, call.name);
            append_piece(out, index, piece.append(",\"arguments\":\"\"}}]}"), kChunkEntryBytesMax);
        }
        std::string_view text = call.arguments;
        while (!text.empty()) {
            const size_t size = character_boundary(text, kChunkTextBytesMax);
            std::string piece = head + ",\"function\":{\"arguments\":";
            append_json_string(piece, text.substr(0, size));
            append_piece(out, index, piece.append("}}]}"), kChunkEntryBytesMax);
            text.remove_prefix(size);
        }
    }
}

void ResponseBuilder::Impl::stream(std::string& out, uint32_t index, Choice::Output output,
                                   bool just_done) {
    begin(out, index);
    Slot& slot = slots[index];
    std::move(output.entries.begin(), output.entries.end(), std::back_inserter(slot.entries));
    append_texts(out, index, "reasoning_content", output.reasoning);
    append_texts(out, index, "content", output.content);
    append_calls(out, index, output.calls);
    // Logprobs that found no room beside their text: long ones, or those of tokens that show
    // nothing.
    const bool had_text =
        !output.reasoning.empty() || !output.content.empty() || !output.calls.empty();
    while (!slot.entries.empty() && (had_text || just_done)) {
        append_piece(out, index, delta("content", ""), kChunkEntryBytesMax);
    }
    if (!just_done) return;
    const bool last = done == slots.size();
    const std::string finish_usage =
        options.generation.include_usage ? chunk_usage() : writer.usage(usage());
    const bool usage_follows = options.generation.include_usage;
    writer.append_chunk(out, index, delta("content", ""), {}, slot.choice.finish_reason(),
                        finish_usage + (last && !usage_follows ? timings() : ""));
    if (!last) return;
    if (usage_follows) writer.append_usage_chunk(out, writer.usage(usage()) + timings());
    out.append(kDoneFrame);
}

// ---- bodies ----

void ResponseBuilder::Impl::append_message(std::string& out, const Slot& slot) const {
    out.append(",\"message\":{\"role\":\"assistant\",\"content\":");
    if (slot.content.empty() && !slot.calls.empty()) {
        out.append("null");
    } else {
        append_json_string(out, slot.content);
    }
    if (!slot.reasoning.empty()) {
        out.append(",\"reasoning_content\":");
        append_json_string(out, slot.reasoning);
    }
    for (size_t i = 0; i < slot.calls.size(); ++i) {
        out.append(i == 0 ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        append_json_string(out, slot.calls[i].id);
        out.append(",\"type\":\"function\",\"function\":{\"name\":");
        append_json_string(out, slot.calls[i].name);
        out.append(",\"arguments\":");
        append_json_string(out, slot.calls[i].arguments);
        out.append("}}");
    }
    out.append(slot.calls.empty() ? "}" : "]}");
}

void ResponseBuilder::Impl::append_body_choice(std::string& out, uint32_t index) const {
    const Slot& slot = slots[index];
    out.append("{\"index\":").append(std::to_string(index));
    if (options.chat) {
        append_message(out, slot);
    } else {
        out.append(",\"text\":");
        append_json_string(out, prompt_of(index).echo + slot.content);
    }
    out.append(",\"logprobs\":");
    writer.append_logprobs(out, slot.entries, false);
    out.append(",\"finish_reason\":\"").append(slot.choice.finish_reason()).append("\"");
    if (!options.chat && options.generation.prompt_logprobs >= 0) append_scores(out, index);
    out.append("}");
}

/// The logprobs of the prompt: of each choice for completions, of the whole answer for chat.
void ResponseBuilder::Impl::append_scores(std::string& out, uint32_t index) const {
    const size_t prompt = index / options.generation.n;
    out.append(",\"prompt_logprobs\":");
    append_prompt_logprobs(out, *tokenizer, options.prompts[prompt].ids, scores[prompt],
                           static_cast<size_t>(options.generation.prompt_logprobs));
}

std::string ResponseBuilder::body() const {
    BATON_CHECK(all_done());
    std::string out = impl_->writer.head(false);
    for (uint32_t i = 0; i < choices(); ++i) {
        if (i != 0) out.push_back(',');
        impl_->append_body_choice(out, i);
    }
    out.append("],\"usage\":").append(impl_->writer.usage(usage()));
    if (impl_->options.chat && impl_->options.generation.prompt_logprobs >= 0)
        impl_->append_scores(out, 0);
    return out.append(impl_->timings()).append("}");
}

// ---- small things ----

std::string response_id(bool chat, std::string_view request_id) {
    std::string out = chat ? "chatcmpl-" : "cmpl-";
    return request_id.empty() ? out + new_request_id() : out.append(request_id);
}

std::string new_request_id() {
    return random_hex(16);
}

std::string system_fingerprint(std::string_view model_identity, std::string_view configuration) {
    std::string all = BATON_VERSION;
    all.append(1, '\0').append(model_identity).append(1, '\0').append(configuration);
    return "fp_" + to_hex(sha256(all)).substr(0, 16);
}

std::string piece_text(const text::Tokenizer& tokenizer, TokenId id) {
    text::Utf8Assembler assembler;
    std::string out = assembler.push(tokenizer.token_bytes(id));
    return out + assembler.finish();
}

}  // namespace baton::openai
