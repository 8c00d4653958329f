#include "text/pretokenizer.hpp"

#include "text/bpe.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

using Step = PreTokenizer::Step;
using Behavior = PreTokenizer::Behavior;

struct Piece {
    Span span;
    bool match = false;
};

/// Alternating unmatched and matched spans that cover the text.
std::vector<Piece> cover(std::string_view text, const Step& step) {
    std::vector<Span> matches;
    step.scanner->find_all(text, matches);
    std::vector<Piece> pieces;
    pieces.reserve(matches.size() * 2 + 1);
    size_t pos = 0;
    for (const Span& match : matches) {
        if (match.begin > pos) pieces.push_back({{pos, match.begin}, step.invert});
        pieces.push_back({match, !step.invert});
        pos = match.end;
    }
    if (pos < text.size()) pieces.push_back({{pos, text.size()}, step.invert});
    return pieces;
}

/// Behavior::kIsolated: each match is a piece, and so is what lies between two.
void isolate(std::string_view text, const Step& step, std::vector<std::string_view>& out) {
    std::vector<Span> matches;
    matches.reserve(text.size() / 4);
    step.scanner->find_all(text, matches);
    if (out.empty()) out.reserve(matches.size());  // for each of many pieces it would be quadratic
    size_t pos = 0;
    for (const Span& match : matches) {
        if (match.begin > pos) out.push_back(text.substr(pos, match.begin - pos));
        out.push_back(text.substr(match.begin, match.end - match.begin));
        pos = match.end;
    }
    if (pos < text.size()) out.push_back(text.substr(pos));
}

void split(std::string_view text, const Step& step, std::vector<std::string_view>& out) {
    if (step.behavior == Behavior::kIsolated) return isolate(text, step, out);
    const std::vector<Piece> pieces = cover(text, step);
    std::vector<Span> spans;
    spans.reserve(pieces.size());
    switch (step.behavior) {
        case Behavior::kIsolated:
            break;  // done above
        case Behavior::kRemoved:
            for (const Piece& p : pieces) {
                if (!p.match) spans.push_back(p.span);
            }
            break;
        case Behavior::kContiguous:
            for (size_t i = 0; i < pieces.size(); ++i) {
                if (i > 0 && pieces[i].match == pieces[i - 1].match) {
                    spans.back().end = pieces[i].span.end;
                } else {
                    spans.push_back(pieces[i].span);
                }
            }
            break;
        case Behavior::kMergedWithPrevious: {
            bool previous_match = false;
            for (const Piece& p : pieces) {
                if (p.match && !previous_match && !spans.empty()) {
                    spans.back().end = p.span.end;
                } else {
                    spans.push_back(p.span);
                }
                previous_match = p.match;
            }
            break;
        }
        case Behavior::kMergedWithNext: {
            bool next_match = false;
            for (size_t i = pieces.size(); i-- > 0;) {
                const Piece& p = pieces[i];
                if (p.match && !next_match && !spans.empty()) {
                    spans.back().begin = p.span.begin;
                } else {
                    spans.push_back(p.span);
                }
                next_match = p.match;
            }
            for (size_t i = spans.size(); i-- > 0;)
                out.push_back(text.substr(spans[i].begin, spans[i].end - spans[i].begin));
            return;
        }
    }
    for (const Span& s : spans) out.push_back(text.substr(s.begin, s.end - s.begin));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    std::string out;
    size_t pos = 0;
    for (size_t at = 0; (at = text.find(from, pos)) != std::string::npos; pos = at + from.size()) {
        out.append(text, pos, at - pos);
        out.append(to);
    }
    out.append(text, pos);
    text = std::move(out);
}

Expected<Behavior> behavior_from(std::string_view name) {
    if (name == "Isolated") return Behavior::kIsolated;
    if (name == "Removed") return Behavior::kRemoved;
    if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
    if (name == "MergedWithNext") return Behavior::kMergedWithNext;
    if (name == "Contiguous") return Behavior::kContiguous;
    return fail(ErrorCode::kUnsupported,
                "tokenizer: unknown split behavior '" + std::string(name) + "'");
}

Expected<Step> split_step(const JsonValue& config) {
    Step step;
    const JsonValue* pattern = config.find("pattern");
    if (pattern == nullptr || !pattern->is_object()) {
        return fail(ErrorCode::kCorrupt, "tokenizer: Split without a pattern");
    }
    BATON_TRY_ASSIGN(step.behavior, behavior_from(config.string_or_empty("behavior")));
    step.invert = config.bool_or("invert", false);
    if (const JsonValue* literal = pattern->find("String");
        literal != nullptr && literal->is_string()) {
        step.scanner = literal_scanner(literal->text);
        return step;
    }
    const JsonValue* regex = pattern->find("Regex");
    if (regex == nullptr || !regex->is_string()) {
        return fail(ErrorCode::kUnsupported, "tokenizer: unknown kind of Split pattern");
    }
    BATON_TRY_ASSIGN(step.scanner, regex_scanner(regex->text));
    return step;
}

Expected<Step> metaspace_step(const JsonValue& config) {
    Step step;
    step.kind = Step::Kind::kMetaspace;
    step.replacement = config.string_or_empty("replacement");
    step.split = config.bool_or("split", true);
    const std::string_view scheme = config.string_or_empty("prepend_scheme");
    if (scheme == "first") {
        step.prepend = PreTokenizer::Prepend::kFirst;
    } else if (scheme == "never") {
        step.prepend = PreTokenizer::Prepend::kNever;
    } else if (scheme == "always") {
        step.prepend = PreTokenizer::Prepend::kAlways;
    } else if (scheme.empty()) {
        step.prepend = config.bool_or("add_prefix_space", true) ? PreTokenizer::Prepend::kAlways
                                                                : PreTokenizer::Prepend::kNever;
    } else {
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: unknown prepend_scheme '" + std::string(scheme) + "'");
    }
    step.behavior = Behavior::kMergedWithNext;
    step.scanner = literal_scanner(step.replacement);
    return step;
}

struct Builder {
    std::vector<Step> steps;
    bool byte_level = false;
    bool spelled = false;

    Expected<void> add(const JsonValue& config, int depth) {
        const std::string_view type = config.string_or_empty("type");
        if (type == "Sequence") return add_sequence(config, depth);
        if (type == "ByteLevel") {
            if (byte_level || spelled)
                return fail(ErrorCode::kUnsupported, "tokenizer: ByteLevel after ByteLevel");
            add_byte_level(config);
            return {};
        }
        if (byte_level) spell_bytes();
        Step step;
        if (type == "Split") {
            BATON_TRY_ASSIGN(step, split_step(config));
        } else if (type == "Metaspace") {
            BATON_TRY_ASSIGN(step, metaspace_step(config));
        } else if (type == "Digits") {
            const bool individual = config.bool_or("individual_digits", false);
            step.scanner = class_scanner(kNumber, !individual);
        } else if (type == "Punctuation") {
            const std::string_view name = config.string_or_empty("behavior");
            BATON_TRY_ASSIGN(step.behavior, behavior_from(name.empty() ? "Isolated" : name));
            step.scanner = punctuation_scanner();
        } else if (type == "CharDelimiterSplit") {
            step.scanner = literal_scanner(std::string(config.string_or_empty("delimiter")));
            step.behavior = Behavior::kRemoved;
        } else if (type == "BertPreTokenizer") {
            step.scanner = class_scanner(kSpace);
            step.behavior = Behavior::kRemoved;
            steps.push_back(std::move(step));
            step = {};
            step.scanner = punctuation_scanner();
        } else if (type == "WhitespaceSplit") {
            step.scanner = class_scanner(kSpace);
            step.behavior = Behavior::kRemoved;
        } else if (type == "Whitespace") {
            BATON_TRY_ASSIGN(
                step.scanner,
                pcre_scanner(
                    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]+|)"
                    R"([^\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\s]+)"));
            step.behavior = Behavior::kRemoved;
            step.invert = true;
        } else {
            return fail(ErrorCode::kUnsupported,
                        "tokenizer: unsupported pre_tokenizer '" + std::string(type) + "'");
        }
        steps.push_back(std::move(step));
        return {};
    }

    Expected<void> add_sequence(const JsonValue& config, int depth) {
        const JsonValue* list = config.find("pretokenizers");
        if (list == nullptr || !list->is_array() || depth > 4) {
            return fail(ErrorCode::kCorrupt, "tokenizer: malformed pre_tokenizer Sequence");
        }
        for (const JsonValue& item : list->items) BATON_TRY(add(item, depth + 1));
        return {};
    }

    /// ByteLevel is not the last step: what follows sees the bytes' spelling.
    void spell_bytes() {
        Step step;
        step.kind = Step::Kind::kSpellBytes;
        steps.push_back(std::move(step));
        byte_level = false;
        spelled = true;
    }

    void add_byte_level(const JsonValue& config) {
        byte_level = true;
        if (config.bool_or("add_prefix_space", true)) {
            Step prefix;
            prefix.kind = Step::Kind::kPrefixSpace;
            steps.push_back(std::move(prefix));
        }
        if (config.bool_or("use_regex", true)) {
            Step words;
            words.scanner = gpt2_scanner();
            steps.push_back(std::move(words));
        }
    }
};

}  // namespace

Expected<PreTokenizer> PreTokenizer::from_json(const JsonValue* config) {
    if (config == nullptr || config->is_null()) return PreTokenizer();
    Builder builder;
    BATON_TRY(builder.add(*config, 0));
    return PreTokenizer(std::move(builder.steps), builder.byte_level);
}

void PreTokenizer::cut(std::string_view text, bool at_start, Pieces& out) const {
    out.list.clear();
    out.storage.clear();
    if (text.empty()) return;
    out.list.push_back(text);
    for (const Step& step : steps_) {
        std::vector<std::string_view> next;
        if (out.list.size() > 1) next.reserve(out.list.size());
        for (size_t i = 0; i < out.list.size(); ++i) {
            std::string_view piece = out.list[i];
            if (step.kind == Step::Kind::kSplit) {
                split(piece, step, next);
                continue;
            }
            if (step.kind == Step::Kind::kSpellBytes) {
                next.push_back(out.storage.emplace_back(spell_bytes(piece)));
                continue;
            }
            if (step.kind == Step::Kind::kPrefixSpace) {
                if (!piece.starts_with(' ')) piece = out.storage.emplace_back(1, ' ').append(piece);
                next.push_back(piece);
                continue;
            }
            std::string changed(piece);
            replace_all(changed, " ", step.replacement);
            const bool prepend = step.prepend == Prepend::kAlways ||
                                 (step.prepend == Prepend::kFirst && at_start && i == 0);
            if (prepend && !changed.starts_with(step.replacement))
                changed.insert(0, step.replacement);
            piece = out.storage.emplace_back(std::move(changed));
            if (step.split) {
                split(piece, step, next);
            } else {
                next.push_back(piece);
            }
        }
        out.list = std::move(next);
    }
}

}  // namespace baton::text
