#include "openai/tool_parser.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/openai/json.hpp"
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

/// Names by which vLLM, SGLang and Xinference call these formats.
constexpr std::array<std::pair<ToolFormat, std::string_view>, 12> kFormatNames{{
    {ToolFormat::kHermes, "hermes"},
    {ToolFormat::kHermes, "qwen"},
    {ToolFormat::kHermes, "qwen25"},
    {ToolFormat::kHermes, "qwen2.5"},
    {ToolFormat::kHermes, "qwen3"},
    {ToolFormat::kLlama3, "llama3_json"},
    {ToolFormat::kLlama3, "llama4_json"},
    {ToolFormat::kLlama3, "llama3"},
    {ToolFormat::kLlama3, "llama3.1"},
    {ToolFormat::kLlama3, "llama"},
    {ToolFormat::kMistral, "mistral"},
    {ToolFormat::kNone, "none"},
}};

size_t after_spaces(std::string_view text) {
    return std::min(text.find_first_not_of(kSpaces), text.size());
}

/// Where the part of `text` begins that may still become `marker`.
size_t uncertain_tail(std::string_view text, std::string_view marker) {
    for (size_t length = std::min(marker.size() - 1, text.size()); length > 0; --length)
        if (marker.starts_with(text.substr(text.size() - length))) return text.size() - length;
    return text.size();
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
    held_.erase(0, read_);
    read_ = 0;
}

/// The part of `held_` that is not read yet.
std::string_view ToolParser::rest() const { return std::string_view(held_).substr(read_); }

/// White space goes to what comes before a call, so that none is looked at twice. True where something follows.
bool ToolParser::pass_spaces() {
    const size_t spaces = after_spaces(rest());
    before_.append(rest().substr(0, spaces));
    read_ += spaces;
    return read_ < held_.size();
}

/// What was kept before a call turned out to be text.
void ToolParser::emit_before(Output& out) {
    emit(before_, out);
    before_.clear();
}

/// One step of the machine over what is held; true when there may be another.
bool ToolParser::step(Output& out) {
    switch (state_) {
        case State::kPlain:
            emit(rest(), out);
            read_ = held_.size();
            return false;
        case State::kStart:
        case State::kTagged:
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
    if (!pass_spaces()) return false;
    if (state_ == State::kStart) {
        if (may_become(rest(), kPythonTag)) return false;
        if (rest().starts_with(kPythonTag)) {
            before_.append(kPythonTag);
            read_ += kPythonTag.size();
            state_ = State::kTagged;
            return true;
        }
    }
    if (rest()[0] == '{') {
        begin_object();
    } else {
        emit_before(out);
        state_ = State::kPlain;
    }
    return true;
}

bool ToolParser::step_text(Output& out) {
    const std::string_view seen = rest();
    const size_t found = seen.find(marker());
    const bool opens = found != std::string_view::npos;
    const std::string_view certain = seen.substr(0, opens ? found : uncertain_tail(seen, marker()));
    const size_t last = certain.find_last_not_of(kSpaces);
    const size_t text = last == std::string_view::npos ? 0 : last + 1;
    if (text > 0) {
        emit_before(out);
        emit(certain.substr(0, text), out);
    }
    before_.append(certain.substr(text));
    read_ += certain.size();
    if (!opens) return false;
    before_.append(marker());
    read_ += marker().size();
    state_ = State::kOpened;
    return true;
}

bool ToolParser::step_opened(Output& out) {
    if (!pass_spaces()) return false;
    if (rest()[0] == '{') {
        begin_object();
    } else if (format_ == ToolFormat::kMistral && rest()[0] == '[' && !in_array_) {
        before_.push_back('[');
        ++read_;
        in_array_ = true;
    } else if (format_ == ToolFormat::kMistral && !in_array_) {
        state_ = State::kName;
    } else {
        give_up(out);
    }
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
    const std::string_view text = rest();
    size_t at = 0;
    JsonTracker::State seen = JsonTracker::State::kOpen;
    size_t run = 0;  // arguments that are not out yet begin here
    while (at < text.size() && seen == JsonTracker::State::kOpen) {
        const char c = text[at++];
        seen = tracker_.feed(c);
        if (!announced_) {
            take(c, out);
            run = at;
        } else if (!arguments_over_ && tracker_.depth() == arguments_depth_) {
            arguments_over_ = true;
            append_arguments(text.substr(run, at - run), out);
        }
    }
    if (announced_ && !arguments_over_) append_arguments(text.substr(run, at - run), out);
    read_ += at;
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
    const size_t brace = rest().substr(0, kNameTextMax + 1).find('{');
    if (brace == std::string_view::npos) {
        if (rest().size() <= kNameTextMax) return false;
        give_up(out);
        return true;
    }
    std::string_view name = rest().substr(0, brace);
    for (const std::string_view mark : {kMistralId, kMistralArguments})
        name = name.substr(0, name.find(mark));
    const size_t end = name.find_last_not_of(kSpaces);
    name = name.substr(0, end == std::string_view::npos ? 0 : end + 1);
    begin_object();
    if (!announce(std::string(name), out)) {
        give_up(out);
        return true;
    }
    read_ += brace;
    arguments_depth_ = 0;
    return true;
}

/// White space behind a call is dropped, and so is what ends it.
bool ToolParser::step_closed() {
    read_ += after_spaces(rest());
    const std::string_view seen = rest();
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
    read_ += skip;
    return true;
}

/// What was read is no call: it is content, and the search goes on behind it.
void ToolParser::give_up(Output& out) {
    emit_before(out);
    emit(call_, out);
    call_.clear();
    in_array_ = false;
    state_ = format_ == ToolFormat::kLlama3 ? State::kPlain : State::kText;
}

/// The one tool that the beginning of a forced call can still become, as its grammar writes it.
const Tool* ToolParser::certain_tool() const {
    const Tool* only = nullptr;
    for (const Tool& tool : use_.tools) {
        if (use_.choice == ToolChoice::kNamed && tool.name != use_.name) continue;
        const std::string head = "{\"name\": " + json_string(tool.name) + ",";
        if (!head.starts_with(call_) && !call_.starts_with(head)) continue;
        if (only != nullptr) return nullptr;
        only = &tool;
    }
    return only;
}

void ToolParser::finish(bool cut, Output& out) {
    if (state_ == State::kObject && announced_) return;
    const bool forced = use_.choice == ToolChoice::kRequired || use_.choice == ToolChoice::kNamed;
    if (state_ == State::kClosed) {
        held_.clear();  // the beginning of what ends a call
    } else if (forced && state_ != State::kPlain) {
        const bool begun = state_ == State::kOpened || state_ == State::kObject || !held_.empty();
        const Tool* tool = cut && begun ? certain_tool() : nullptr;
        if (tool != nullptr) announce(tool->name, out);
        before_.clear();
        call_.clear();
        held_.clear();
    } else if (state_ == State::kOpened || state_ == State::kObject || state_ == State::kName) {
        give_up(out);
    }
    emit_before(out);
    emit(held_, out);
    held_.clear();
}

std::optional<ToolFormat> tool_format_by_name(std::string_view name) {
    for (const auto& [format, known] : kFormatNames)
        if (name == known) return format;
    return std::nullopt;
}

std::string tool_format_names() {
    std::string out;
    for (const auto& [format, name] : kFormatNames) {
        if (!out.empty()) out += name == kFormatNames.back().second ? " or " : ", ";
        out += name;
    }
    return out;
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
