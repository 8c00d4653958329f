#include "text/normalizer.hpp"

#include <utf8proc.h>

namespace baton::text {
namespace {

using Step = Normalizer::Step;

std::string replace_matches(std::string_view text, const Step& step) {
    std::vector<Span> matches;
    step.pattern->find_all(text, matches);
    std::string out;
    size_t pos = 0;
    for (const Span& match : matches) {
        out.append(text.substr(pos, match.begin - pos));
        out.append(step.to);
        pos = match.end;
    }
    out.append(text.substr(pos));
    return out;
}

std::string replace(std::string_view text, const Step& step) {
    if (step.pattern != nullptr) return replace_matches(text, step);
    std::string out;
    out.reserve(text.size());
    size_t pos = 0;
    for (size_t at = 0; (at = text.find(step.from, pos)) != std::string_view::npos;
         pos = at + step.from.size()) {
        out.append(text.substr(pos, at - pos));
        out.append(step.to);
    }
    out.append(text.substr(pos));
    return out;
}

std::string lowercase(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
        const CodePoint cp = decode_utf8(text, pos);
        pos += cp.length;
        if (cp.code == 0x130) {
            out += "i\xCC\x87";
        } else {
            append_utf8(out, static_cast<uint32_t>(
                                 utf8proc_tolower(static_cast<utf8proc_int32_t>(cp.code))));
        }
    }
    return out;
}

std::string strip(std::string_view text, const Step& step) {
    const auto space_at = [&](size_t pos) {
        return (char_class(decode_utf8(text, pos).code) & kSpace) != 0;
    };
    while (step.left && !text.empty() && space_at(0))
        text.remove_prefix(decode_utf8(text, 0).length);
    while (step.right && !text.empty()) {
        const size_t last = previous_utf8(text, text.size());
        if (!space_at(last)) break;
        text = text.substr(0, last);
    }
    return std::string(text);
}

Expected<Step> replace_step(const JsonValue& config) {
    Step step;
    step.kind = Step::Kind::kReplace;
    const JsonValue* pattern = config.find("pattern");
    step.to = config.string_or_empty("content");
    const JsonValue* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (regex != nullptr && regex->is_string()) {
        BATON_TRY_ASSIGN(step.pattern, pcre_scanner(regex->text));
        return step;
    }
    const JsonValue* literal = pattern == nullptr ? nullptr : pattern->find("String");
    if (literal == nullptr || !literal->is_string() || literal->text.empty()) {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: normalizer Replace needs a String or a Regex");
    }
    step.from = literal->text;
    return step;
}

Expected<void> add(const JsonValue& config, int depth, std::vector<Step>& steps) {
    const std::string_view type = config.string_or_empty("type");
    Step step;
    if (type == "Sequence") {
        const JsonValue* list = config.find("normalizers");
        if (list == nullptr || !list->is_array() || depth > 4) {
            return fail(ErrorCode::kCorrupt, "tokenizer: malformed normalizer Sequence");
        }
        for (const JsonValue& item : list->items) BATON_TRY(add(item, depth + 1, steps));
        return {};
    }
    if (type == "NFC") {
        step.form = NormalForm::kNfc;
    } else if (type == "NFD") {
        step.form = NormalForm::kNfd;
    } else if (type == "NFKC") {
        step.form = NormalForm::kNfkc;
    } else if (type == "NFKD") {
        step.form = NormalForm::kNfkd;
    } else if (type == "Prepend") {
        step.kind = Step::Kind::kPrepend;
        step.to = config.string_or_empty("prepend");
    } else if (type == "Replace") {
        BATON_TRY_ASSIGN(step, replace_step(config));
    } else if (type == "Lowercase") {
        step.kind = Step::Kind::kLowercase;
    } else if (type == "Strip") {
        step.kind = Step::Kind::kStrip;
        step.left = config.bool_or("strip_left", true);
        step.right = config.bool_or("strip_right", true);
    } else {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unsupported normalizer '" + std::string(type) + "'");
    }
    steps.push_back(std::move(step));
    return {};
}

}  // namespace

Expected<Normalizer> Normalizer::from_json(const JsonValue* config) {
    if (config == nullptr || config->is_null()) return Normalizer();
    std::vector<Step> steps;
    BATON_TRY(add(*config, 0, steps));
    return Normalizer(std::move(steps));
}

std::string Normalizer::apply(std::string_view text) const {
    std::string out(text);
    for (const Step& step : steps_) {
        switch (step.kind) {
            case Step::Kind::kForm:
                out = normalize(out, step.form);
                break;
            case Step::Kind::kPrepend:
                if (!out.empty()) out.insert(0, step.to);
                break;
            case Step::Kind::kReplace:
                out = replace(out, step);
                break;
            case Step::Kind::kLowercase:
                out = lowercase(out);
                break;
            case Step::Kind::kStrip:
                out = strip(out, step);
                break;
        }
    }
    return out;
}

}  // namespace baton::text
