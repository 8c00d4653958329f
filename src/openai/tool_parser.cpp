#include "openai/tool_parser.hpp"

#include <algorithm>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "openai/json.hpp"

namespace baton::openai {
namespace {

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kMistralArguments = "[ARGS]";
constexpr std::string_view kMistralId = "[CALL_ID]";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kSpaces = " \t\r\n";
constexpr size_t kNameTextMax = 512;  ///< bytes that a name and what goes with it may have

size_t after_spaces(std::string_view text) {
    return std::min(text.find_first_not_of(kSpaces), text.size());
}

/// Where the part of `text` begins that may still become `marker`, white space before it included.
size_t uncertain_tail(std::string_view text, std::string_view marker) {
    size_t begin = text.size();
    for (size_t length = std::min(marker.size() - 1, text.size()); length > 0; --length) {
        if (!marker.starts_with(text.substr(text.size() - length))) continue;
        begin = text.size() - length;
        break;
    }
    const size_t last = text.substr(0, begin).find_last_not_of(kSpaces);
    return last == std::string_view::npos ? 0 : last + 1;
}

bool may_become(std::string_view text, std::string_view marker) {
    return text.size() < marker.size() && marker.starts_with(text);
}

bool is_arguments_key(std::string_view key) {
    return key == "arguments" || key == "parameters";
}

/// Ids as the formats' templates take them: Mistral's want nine letters and digits.
std::string new_call_id(ToolFormat format) {
    return format == ToolFormat::kMistral ? random_hex(5).substr(0, 9) : "call_" + random_hex(12);
}

}  // namespace

JsonTracker::State JsonTracker::feed(char c) {
    if (in_string_) {
        if (escaped_) {
            escaped_ = false;
        } else if (c == '\\') {
            escaped_ = true;
        } else if (c == '"') {
            in_string_ = false;
        }
        return State::kOpen;
    }
    switch (c) {
        case '"':
            in_string_ = true;
            return State::kOpen;
        case '{':
        case '[':
            if (open_.size() >= limits::kJsonDepthMax) return State::kBroken;
            open_.push_back(c);
            return State::kOpen;
        case '}':
        case ']':
            if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return State::kBroken;
            open_.pop_back();
            return open_.empty() ? State::kDone : State::kOpen;
        default:
            return State::kOpen;
    }
}

ToolParser::ToolParser(ToolFormat format, const ToolUse& use)
    : format_(format), use_(use), state_(State::kText) {
    if (format == ToolFormat::kNone) state_ = State::kPlain;
    if (format == ToolFormat::kLlama3) state_ = State::kStart;
}

std::string_view ToolParser::marker() const {
    return format_ == ToolFormat::kMistral ? kMistralOpen : kHermesOpen;
}

bool ToolParser::knows(std::string_view name) const {
    return std::any_of(use_.tools.begin(), use_.tools.end(),
                       [&](const Tool& tool) { return tool.name == name; });
}

void ToolParser::push(std::string_view text, Output& out) {
    if (state_ == State::kPlain && held_.empty()) return emit(text, out);
    held_.append(text);
    while (step(out)) {
    }
}

/// One step of the machine over what is held; true when there may be another.
bool ToolParser::step(Output& out) {
    switch (state_) {
        case State::kPlain:
            emit(held_, out);
            held_.clear();
            return false;
        case State::kStart:
            return step_start(out);
        case State::kText:
            return step_text(out);
        case State::kOpened:
            return step_opened(out);
        case State::kObject:
            return step_object(out);
        case State::kName:
            return step_name(out);
        case State::kClosed:
            return step_closed();
    }
    return false;
}

void ToolParser::emit(std::string_view text, Output& out) {
    if (after_call_) text.remove_prefix(after_spaces(text));
    if (text.empty()) return;
    after_call_ = false;
    out.content.append(text);
}

bool ToolParser::step_start(Output& out) {
    size_t at = after_spaces(held_);
    const std::string_view seen = std::string_view(held_).substr(at);
    if (seen.empty() || may_become(seen, kPythonTag)) return false;
    if (seen.starts_with(kPythonTag)) {
        at += kPythonTag.size();
        at += after_spaces(std::string_view(held_).substr(at));
        if (at == held_.size()) return false;
    }
    if (held_[at] != '{') {
        state_ = State::kPlain;
        return step(out);
    }
    before_ = held_.substr(0, at);
    held_.erase(0, at);
    begin_object();
    return true;
}

bool ToolParser::step_text(Output& out) {
    const size_t found = held_.find(marker());
    if (found == std::string::npos) {
        const size_t certain = uncertain_tail(held_, marker());
        emit(std::string_view(held_).substr(0, certain), out);
        held_.erase(0, certain);
        return false;
    }
    const size_t last = std::string_view(held_).substr(0, found).find_last_not_of(kSpaces);
    const size_t text = last == std::string::npos ? 0 : last + 1;
    emit(std::string_view(held_).substr(0, text), out);
    before_ = held_.substr(text, found + marker().size() - text);
    held_.erase(0, found + marker().size());
    state_ = State::kOpened;
    return true;
}

bool ToolParser::step_opened(Output& out) {
    const size_t at = after_spaces(held_);
    before_.append(held_, 0, at);
    held_.erase(0, at);
    if (held_.empty()) return false;
    if (held_[0] == '{') {
        begin_object();
        return true;
    }
    if (format_ == ToolFormat::kMistral && held_[0] == '[' && !in_array_) {
        before_.push_back('[');
        held_.erase(0, 1);
        in_array_ = true;
        return true;
    }
    if (format_ == ToolFormat::kMistral && !in_array_) {
        state_ = State::kName;
        return true;
    }
    give_up(out);
    return true;
}

void ToolParser::begin_object() {
    state_ = State::kObject;
    call_.clear();
    tracker_ = {};
    announced_ = muted_ = arguments_over_ = looked_ = false;
}

/// A call's first part goes out. False for a name that is no tool's.
bool ToolParser::announce(std::string name, Output& out) {
    if (!knows(name)) return false;
    announced_ = true;
    before_.clear();
    call_.clear();
    muted_ = !use_.parallel && calls_ > 0;
    if (!muted_) out.calls.push_back({calls_++, new_call_id(format_), std::move(name), ""});
    return true;
}

void ToolParser::append_arguments(std::string_view text, Output& out) {
    if (muted_) return;
    if (out.calls.empty() || out.calls.back().index + 1 != calls_)
        out.calls.push_back({calls_ - 1, "", "", ""});
    out.calls.back().arguments.append(text);
}

/// One character of a call that is not announced: its arguments begin when an object opens whose
/// key says so, after the name.
void ToolParser::take(char c, Output& out) {
    call_.push_back(c);
    if (c != '{' || tracker_.depth() != 2 || tracker_.in_string() || looked_) return;
    looked_ = true;
    const auto so_far = parse_json_object(call_ + "}}");
    if (!so_far) return;
    const Json* name = find(*so_far, "name");
    const auto last = std::prev(so_far->end());
    if (name == nullptr || !name->is_string() || !is_arguments_key(last.key())) return;
    if (!announce(name->get<std::string>(), out)) return;
    arguments_depth_ = 1;
    append_arguments("{", out);
}

/// A call that came in another order than name, arguments. False when it is none.
bool ToolParser::whole_call(Output& out) {
    const auto object = parse_json_object(call_);
    if (!object) return false;
    const Json* name = find(*object, "name");
    if (name == nullptr || !name->is_string()) return false;
    const Json* arguments = find(*object, "arguments");
    if (arguments == nullptr) arguments = find(*object, "parameters");
    std::string text = "{}";
    if (arguments != nullptr && arguments->is_string()) {
        text = arguments->get<std::string>();
        if (!parse_json_object(text)) return false;
    } else if (arguments != nullptr) {
        if (!arguments->is_object()) return false;
        text = dump(*arguments);
    }
    if (!announce(name->get<std::string>(), out)) return false;
    append_arguments(text, out);
    return true;
}

bool ToolParser::step_object(Output& out) {
    size_t at = 0;
    JsonTracker::State seen = JsonTracker::State::kOpen;
    size_t run = 0;  // arguments that are not out yet begin here
    while (at < held_.size() && seen == JsonTracker::State::kOpen) {
        const char c = held_[at++];
        seen = tracker_.feed(c);
        if (!announced_) {
            take(c, out);
            run = at;
        } else if (!arguments_over_ && tracker_.depth() == arguments_depth_) {
            arguments_over_ = true;
            append_arguments(std::string_view(held_).substr(run, at - run), out);
        }
    }
    if (announced_ && !arguments_over_)
        append_arguments(std::string_view(held_).substr(run, at - run), out);
    held_.erase(0, at);
    if (seen == JsonTracker::State::kOpen) return false;
    if (!announced_ && (seen == JsonTracker::State::kBroken || !whole_call(out))) {
        give_up(out);
        return true;
    }
    state_ = State::kClosed;
    after_call_ = true;
    return true;
}

bool ToolParser::step_name(Output& out) {
    const size_t brace = held_.find('{');
    if (brace == std::string::npos) {
        if (held_.size() <= kNameTextMax) return false;
        give_up(out);
        return true;
    }
    std::string_view name = std::string_view(held_).substr(0, brace);
    for (const std::string_view mark : {kMistralId, kMistralArguments})
        name = name.substr(0, name.find(mark));
    const size_t end = name.find_last_not_of(kSpaces);
    name = name.substr(0, end == std::string_view::npos ? 0 : end + 1);
    const std::string known(name);
    begin_object();
    if (!announce(known, out)) {
        give_up(out);
        return true;
    }
    held_.erase(0, brace);
    arguments_depth_ = 0;
    return true;
}

bool ToolParser::step_closed() {
    const size_t at = after_spaces(held_);
    const std::string_view seen = std::string_view(held_).substr(at);
    if (seen.empty()) return false;
    size_t skip = 0;
    if (format_ == ToolFormat::kHermes) {
        if (may_become(seen, kHermesClose)) return false;
        if (seen.starts_with(kHermesClose)) skip = kHermesClose.size();
        state_ = State::kText;
    } else if (format_ == ToolFormat::kMistral) {
        if (in_array_ && (seen[0] == ',' || seen[0] == ']')) skip = 1;
        if (in_array_ && seen[0] == ',') {
            state_ = State::kOpened;
        } else {
            in_array_ = false;
            state_ = State::kText;
        }
    } else {
        if (seen[0] == ';' || seen[0] == ',') skip = 1;
        state_ = State::kStart;
    }
    held_.erase(0, at + skip);
    return true;
}

/// What was read is no call: it is content, and the search goes on behind it.
void ToolParser::give_up(Output& out) {
    std::string text = std::move(before_) + call_;
    before_.clear();
    call_.clear();
    in_array_ = false;
    emit(text, out);
    state_ = format_ == ToolFormat::kLlama3 ? State::kPlain : State::kText;
}

void ToolParser::finish(Output& out) {
    if (state_ == State::kObject && announced_) return;
    if (state_ == State::kOpened || state_ == State::kObject || state_ == State::kName)
        give_up(out);
    emit(held_, out);
    held_.clear();
}

std::optional<ToolFormat> tool_format_by_name(std::string_view name) {
    if (name == "hermes" || name == "qwen" || name == "qwen3") return ToolFormat::kHermes;
    if (name == "llama3_json" || name == "llama3" || name == "llama") return ToolFormat::kLlama3;
    if (name == "mistral") return ToolFormat::kMistral;
    if (name == "none") return ToolFormat::kNone;
    return std::nullopt;
}

ToolFormat tool_format_of_template(std::string_view source) {
    const auto has = [&](std::string_view text) {
        return source.find(text) != std::string_view::npos;
    };
    if (has(kMistralOpen)) return ToolFormat::kMistral;
    if (has(kHermesOpen)) return ToolFormat::kHermes;
    if (has("\"parameters\":") && (has("ipython") || has("python_tag") || has("Environment:")))
        return ToolFormat::kLlama3;
    return ToolFormat::kHermes;
}

}  // namespace baton::openai
