#include "cli/bench_serve_answer.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "cli/client_session.hpp"

namespace baton::cli {
namespace {

constexpr size_t kHeadBytesMax = 64 * 1024;
constexpr size_t kEventBytesMax = 16 * 1024 * 1024;
constexpr size_t kErrorBytesMax = 2'000;

/// What follows `"key":` and spaces in a JSON text; "" where the key is not there. Within strings quotes are escaped, so
/// that the key is never found there.
std::string_view after_key(std::string_view json, std::string_view quoted_key_colon) {
    const void* at = ::memmem(json.data(), json.size(), quoted_key_colon.data(), quoted_key_colon.size());
    if (at == nullptr) return {};
    json.remove_prefix(static_cast<size_t>(static_cast<const char*>(at) - json.data()) + quoted_key_colon.size());
    while (!json.empty() && (json.front() == ' ' || json.front() == '\t')) json.remove_prefix(1);
    return json;
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return out;
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
    return text;
}

/// A whole number at the text's begin; false where there is none.
bool number(std::string_view text, int base, uint64_t& out) {
    return std::from_chars(text.data(), text.data() + text.size(), out, base).ec == std::errc{};
}

}  // namespace

bool has_text(std::string_view event) {
    const std::string_view value = after_key(event, "\"text\":");
    return value.size() > 1 && value[0] == '"' && value[1] != '"';
}

uint32_t AnswerReader::feed(std::string_view bytes) {
    texts_ = 0;
    begun_ = begun_ || !bytes.empty();
    while (!bytes.empty() && state_ != State::kOver) bytes.remove_prefix(take(bytes));
    if (!bytes.empty() && !broken_) fail("the server sent more than its answer");
    return texts_;
}

size_t AnswerReader::take(std::string_view bytes) {
    size_t used = 0;
    switch (state_) {
        case State::kHead:
            if (line(bytes, used)) head_line();
            return used;
        case State::kChunkSize:
            if (!line(bytes, used)) return used;
            if (!number(line_, 16, left_)) fail("the server sent a malformed chunk");
            else state_ = left_ == 0 ? State::kTrailer : State::kChunk;
            line_.clear();
            return used;
        case State::kChunkEnd:
            if (line(bytes, used)) state_ = State::kChunkSize;
            return used;
        case State::kTrailer:
            if (!line(bytes, used)) return used;
            if (line_.empty()) finish();
            line_.clear();
            return used;
        case State::kChunk:
        case State::kLength:
            used = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
            body(bytes.substr(0, used));
            left_ -= used;
            if (left_ > 0 || state_ == State::kOver) return used;
            if (state_ == State::kLength) finish();
            else state_ = State::kChunkEnd;
            return used;
        case State::kUntilClose:
            body(bytes);
            return bytes.size();
        case State::kOver: break;
    }
    return bytes.size();
}

bool AnswerReader::line(std::string_view bytes, size_t& used) {
    const size_t end = bytes.find('\n');
    used = end == std::string_view::npos ? bytes.size() : end + 1;
    head_bytes_ += state_ == State::kHead ? used : 0;
    if (line_.size() + used > kHeadBytesMax || head_bytes_ > kHeadBytesMax) {
        fail("the server sent too long a header");
        return false;
    }
    line_.append(bytes.substr(0, std::min(end, bytes.size())));
    if (end == std::string_view::npos) return false;
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
}

void AnswerReader::head_line() {
    const std::string text = std::move(line_);
    line_.clear();
    if (status_ == 0) {
        uint64_t status = 0;
        if (!text.starts_with("HTTP/1.") || text.size() < 12 || !number(std::string_view(text).substr(9), 10, status) || status < 100 || status > 999)
            return fail("the answer is not HTTP");
        status_ = static_cast<int>(status);
        keep_ = text[7] == '1';
        return;
    }
    if (text.empty()) return body_begins();
    const size_t colon = text.find(':');
    if (colon == std::string::npos) return fail("the server sent a malformed header");
    const std::string name = lower(std::string_view(text).substr(0, colon));
    const std::string value = lower(trimmed(std::string_view(text).substr(colon + 1)));
    if (name == "transfer-encoding") chunked_ = value.ends_with("chunked");
    if (name == "content-length") has_length_ = number(value, 10, left_);
    if (name == "connection") keep_ = value.find("close") == std::string::npos && (keep_ || value.find("keep-alive") != std::string::npos);
}

void AnswerReader::body_begins() {
    if (status_ < 200) {  // an interim answer: the real one follows
        status_ = 0;
        return;
    }
    if (chunked_) state_ = State::kChunkSize;
    else if (has_length_) state_ = State::kLength;
    else state_ = State::kUntilClose;
    keep_ = keep_ && state_ != State::kUntilClose;
    if (state_ == State::kLength && left_ == 0) finish();
}

void AnswerReader::body(std::string_view bytes) {
    if (status_ != 200) {
        error_body_.append(bytes.substr(0, kErrorBytesMax - std::min(kErrorBytesMax, error_body_.size())));
        return;
    }
    while (!bytes.empty() && state_ != State::kOver) {
        const size_t end = bytes.find('\n');
        if (end == std::string_view::npos) {
            if (partial_.size() + bytes.size() > kEventBytesMax) return fail("the server sent too long an event");
            partial_.append(bytes);
            return;
        }
        if (partial_.empty()) {
            event_line(bytes.substr(0, end));
        } else {
            partial_.append(bytes.substr(0, end));
            event_line(partial_);
            partial_.clear();
        }
        bytes.remove_prefix(end + 1);
    }
}

void AnswerReader::event_line(std::string_view text) {
    constexpr std::string_view kData = "data:";
    if (!text.starts_with(kData)) return;
    text.remove_prefix(kData.size());
    text = trimmed(text);
    if (text == "[DONE]") finished_ = true;
    else event(text);
}

void AnswerReader::event(std::string_view data) {
    if (has_text(data)) ++texts_;
    const std::string_view problem = after_key(data, "\"error\":");
    const bool failed = !problem.empty() && !problem.starts_with("null");
    if (!failed && !after_key(data, "\"usage\":").starts_with('{')) return;
    const Json parsed = Json::parse(data, nullptr, false);
    if (!parsed.is_object()) return;
    const auto usage = parsed.find("usage");
    if (usage != parsed.end() && usage->is_object()) {
        const auto count = [&](const char* key) {
            const auto it = usage->find(key);
            return it != usage->end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
        };
        input_tokens_ = count("prompt_tokens");
        output_tokens_ = count("completion_tokens");
    }
    const auto error = parsed.find("error");
    if (error != parsed.end() && !error->is_null()) fail(error->is_object() ? text_of(*error, "message") : error->dump());
}

void AnswerReader::finish() {
    state_ = State::kOver;
    if (status_ != 200) error_ = "status " + std::to_string(status_) + ": " + error_body_.substr(0, 200);
    else if (!finished_) error_ = "the answer is not a whole stream of events";
}

void AnswerReader::close() {
    if (state_ == State::kUntilClose) finish();
    else if (state_ != State::kOver) fail("the server closed the connection");
}

void AnswerReader::fail(std::string why) {
    state_ = State::kOver;
    broken_ = true;
    error_ = std::move(why);
}

}  // namespace baton::cli
